from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerFrame(_message.Message):
    __slots__ = ("hello", "heartbeat", "result")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    heartbeat: Heartbeat
    result: Result
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., result: _Optional[_Union[Result, _Mapping]] = ...) -> None: ...

class ConsoleFrame(_message.Message):
    __slots__ = ("hello_ack", "heartbeat_ack", "dispatch", "cancel", "result_ack", "drain")
    HELLO_ACK_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_ACK_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    RESULT_ACK_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    hello_ack: HelloAck
    heartbeat_ack: HeartbeatAck
    dispatch: Dispatch
    cancel: Cancel
    result_ack: ResultAck
    drain: Drain
    def __init__(self, hello_ack: _Optional[_Union[HelloAck, _Mapping]] = ..., heartbeat_ack: _Optional[_Union[HeartbeatAck, _Mapping]] = ..., dispatch: _Optional[_Union[Dispatch, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., result_ack: _Optional[_Union[ResultAck, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("worker_id", "timestamp_unix_ms", "nonce", "declaration", "signature")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    DECLARATION_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    timestamp_unix_ms: int
    nonce: bytes
    declaration: bytes
    signature: bytes
    def __init__(self, worker_id: _Optional[str] = ..., timestamp_unix_ms: _Optional[int] = ..., nonce: _Optional[bytes] = ..., declaration: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Declaration(_message.Message):
    __slots__ = ("capabilities", "labels", "software", "max_session_calls", "holding", "sessions")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSION_CALLS_FIELD_NUMBER: _ClassVar[int]
    HOLDING_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    capabilities: _containers.RepeatedCompositeFieldContainer[Capability]
    labels: _containers.ScalarMap[str, str]
    software: str
    max_session_calls: int
    holding: _containers.RepeatedScalarFieldContainer[str]
    sessions: _containers.RepeatedCompositeFieldContainer[HeldSession]
    def __init__(self, capabilities: _Optional[_Iterable[_Union[Capability, _Mapping]]] = ..., labels: _Optional[_Mapping[str, str]] = ..., software: _Optional[str] = ..., max_session_calls: _Optional[int] = ..., holding: _Optional[_Iterable[str]] = ..., sessions: _Optional[_Iterable[_Union[HeldSession, _Mapping]]] = ...) -> None: ...

class Capability(_message.Message):
    __slots__ = ("name", "max_inflight")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MAX_INFLIGHT_FIELD_NUMBER: _ClassVar[int]
    name: str
    max_inflight: int
    def __init__(self, name: _Optional[str] = ..., max_inflight: _Optional[int] = ...) -> None: ...

class HeldSession(_message.Message):
    __slots__ = ("owner", "session_id", "lease_expires_unix_ms", "created_unix_ms", "image", "image_digest", "network", "runtime")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_EXPIRES_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    IMAGE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    owner: str
    session_id: str
    lease_expires_unix_ms: int
    created_unix_ms: int
    image: str
    image_digest: str
    network: str
    runtime: str
    def __init__(self, owner: _Optional[str] = ..., session_id: _Optional[str] = ..., lease_expires_unix_ms: _Optional[int] = ..., created_unix_ms: _Optional[int] = ..., image: _Optional[str] = ..., image_digest: _Optional[str] = ..., network: _Optional[str] = ..., runtime: _Optional[str] = ...) -> None: ...

class HelloAck(_message.Message):
    __slots__ = ("heartbeat_interval_ms", "sessions")
    HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    heartbeat_interval_ms: int
    sessions: _containers.RepeatedCompositeFieldContainer[HeldSession]
    def __init__(self, heartbeat_interval_ms: _Optional[int] = ..., sessions: _Optional[_Iterable[_Union[HeldSession, _Mapping]]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("timestamp_unix_ms", "changed_sessions", "ended_sessions")
    TIMESTAMP_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    CHANGED_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    ENDED_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    timestamp_unix_ms: int
    changed_sessions: _containers.RepeatedCompositeFieldContainer[HeldSession]
    ended_sessions: _containers.RepeatedCompositeFieldContainer[SessionName]
    def __init__(self, timestamp_unix_ms: _Optional[int] = ..., changed_sessions: _Optional[_Iterable[_Union[HeldSession, _Mapping]]] = ..., ended_sessions: _Optional[_Iterable[_Union[SessionName, _Mapping]]] = ...) -> None: ...

class SessionName(_message.Message):
    __slots__ = ("owner", "session_id")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    owner: str
    session_id: str
    def __init__(self, owner: _Optional[str] = ..., session_id: _Optional[str] = ...) -> None: ...

class HeartbeatAck(_message.Message):
    __slots__ = ("timestamp_unix_ms",)
    TIMESTAMP_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    timestamp_unix_ms: int
    def __init__(self, timestamp_unix_ms: _Optional[int] = ...) -> None: ...

class Dispatch(_message.Message):
    __slots__ = ("command_id", "capability", "payload_json", "data", "timeout_ms", "owner", "traceparent")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_JSON_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    command_id: str
    capability: str
    payload_json: bytes
    data: bytes
    timeout_ms: int
    owner: str
    traceparent: str
    def __init__(self, command_id: _Optional[str] = ..., capability: _Optional[str] = ..., payload_json: _Optional[bytes] = ..., data: _Optional[bytes] = ..., timeout_ms: _Optional[int] = ..., owner: _Optional[str] = ..., traceparent: _Optional[str] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("command_id",)
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    command_id: str
    def __init__(self, command_id: _Optional[str] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("command_id", "payload_json", "error", "data", "receipt")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_JSON_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    command_id: str
    payload_json: bytes
    error: Error
    data: bytes
    receipt: bytes
    def __init__(self, command_id: _Optional[str] = ..., payload_json: _Optional[bytes] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., data: _Optional[bytes] = ..., receipt: _Optional[bytes] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class ResultAck(_message.Message):
    __slots__ = ("command_id",)
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    command_id: str
    def __init__(self, command_id: _Optional[str] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("leave",)
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    leave: bool
    def __init__(self, leave: _Optional[bool] = ...) -> None: ...
