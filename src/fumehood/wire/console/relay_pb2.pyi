from fumehood.wire.console import console_pb2 as _console_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Relay(_message.Message):
    __slots__ = ("call", "reply", "stored", "freed", "cancel", "drain")
    CALL_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    FREED_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    call: Call
    reply: Reply
    stored: Stored
    freed: Freed
    cancel: CancelCommand
    drain: DrainWorker
    def __init__(self, call: _Optional[_Union[Call, _Mapping]] = ..., reply: _Optional[_Union[Reply, _Mapping]] = ..., stored: _Optional[_Union[Stored, _Mapping]] = ..., freed: _Optional[_Union[Freed, _Mapping]] = ..., cancel: _Optional[_Union[CancelCommand, _Mapping]] = ..., drain: _Optional[_Union[DrainWorker, _Mapping]] = ...) -> None: ...

class Call(_message.Message):
    __slots__ = ("origin", "worker_id", "epoch", "dispatch", "attempt", "record")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    origin: str
    worker_id: str
    epoch: str
    dispatch: _console_pb2.Dispatch
    attempt: int
    record: bytes
    def __init__(self, origin: _Optional[str] = ..., worker_id: _Optional[str] = ..., epoch: _Optional[str] = ..., dispatch: _Optional[_Union[_console_pb2.Dispatch, _Mapping]] = ..., attempt: _Optional[int] = ..., record: _Optional[bytes] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("command_id", "holder", "taken", "result", "result_ref", "refused", "epoch", "worker_id", "attempt")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    RESULT_REF_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    command_id: str
    holder: str
    taken: bool
    result: _console_pb2.Result
    result_ref: str
    refused: str
    epoch: str
    worker_id: str
    attempt: int
    def __init__(self, command_id: _Optional[str] = ..., holder: _Optional[str] = ..., taken: _Optional[bool] = ..., result: _Optional[_Union[_console_pb2.Result, _Mapping]] = ..., result_ref: _Optional[str] = ..., refused: _Optional[str] = ..., epoch: _Optional[str] = ..., worker_id: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class Stored(_message.Message):
    __slots__ = ("command_id",)
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    command_id: str
    def __init__(self, command_id: _Optional[str] = ...) -> None: ...

class Freed(_message.Message):
    __slots__ = ("worker_id", "capability")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    capability: str
    def __init__(self, worker_id: _Optional[str] = ..., capability: _Optional[str] = ...) -> None: ...

class CancelCommand(_message.Message):
    __slots__ = ("command_id",)
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    command_id: str
    def __init__(self, command_id: _Optional[str] = ...) -> None: ...

class DrainWorker(_message.Message):
    __slots__ = ("worker_id",)
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    def __init__(self, worker_id: _Optional[str] = ...) -> None: ...
