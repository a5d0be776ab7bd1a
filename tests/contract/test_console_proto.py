"""The protocol between console and workers: written as protocols are, and the committed modules are what it says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from fumehood.wire.console import codes, console_pb2, relay_pb2

FOLDER = Path(__file__).parents[2] / "contracts" / "proto"
PACKAGE = "fumehood.console.v1"
PROTOS = sorted((FOLDER / PACKAGE.replace(".", "/")).glob("*.proto"))
MODULES = {"console.proto": console_pb2, "relay.proto": relay_pb2}
SNAKE, PASCAL = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*"), re.compile(r"([A-Z][a-z0-9]+)+")


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_proto", FOLDER / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def messages() -> list[Descriptor]:
    return [one for module in MODULES.values() for one in module.DESCRIPTOR.message_types_by_name.values()]


def fields() -> list[FieldDescriptor]:
    return [field for message in messages() for field in message.fields]


def test_the_committed_modules_are_what_the_protocol_says() -> None:
    made = generator()
    for name, text in made.generated().items():
        assert (made.TARGET / name).read_text() == text, f"{name}: run `python contracts/proto/generate.py`"


def test_every_file_has_a_module_and_is_of_the_package() -> None:
    assert {path.name for path in PROTOS} == set(MODULES)
    for path in PROTOS:
        text = path.read_text()
        assert f"package {PACKAGE};" in text
        assert text.startswith("//"), "a file says what it is for"
        descriptor = MODULES[path.name].DESCRIPTOR
        assert (descriptor.package, descriptor.name) == (PACKAGE, str(path.relative_to(FOLDER)))


def test_names_are_written_as_everywhere() -> None:
    for message in messages():
        assert PASCAL.fullmatch(message.name), message.full_name
        for oneof in message.oneofs:
            assert SNAKE.fullmatch(oneof.name), f"{message.name}.{oneof.name}"
    for field in fields():
        assert SNAKE.fullmatch(field.name), field.full_name
        is_time = field.name.endswith(("_unix_ms", "_ms"))
        assert not is_time or field.cpp_type in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT32)


def test_numbers_of_fields_have_no_gaps_that_nobody_explains() -> None:
    """A number that was given up is reserved, so that it never means something else."""
    for message in messages():
        proto = descriptor_pb2.DescriptorProto()
        message.CopyToProto(proto)
        reserved = {number for span in proto.reserved_range for number in range(span.start, span.end)}
        numbers = {field.number for field in message.fields} | reserved
        assert numbers == set(range(1, len(numbers) + 1)), message.full_name


def test_there_is_one_method_and_the_door_knows_its_name() -> None:
    (service,) = console_pb2.DESCRIPTOR.services_by_name.values()
    assert service.name.endswith("Service")
    (method,) = service.methods
    proto = descriptor_pb2.MethodDescriptorProto()
    method.CopyToProto(proto)
    assert (proto.client_streaming, proto.server_streaming) == (True, True)
    assert f"/{service.full_name}/{method.name}" == codes.CONNECT_METHOD


OBVIOUS = frozenset(
    {
        "worker_id", "command_id", "session_id", "owner", "image", "name", "labels", "capabilities", "capability",
        "max_inflight", "payload_json", "timestamp_unix_ms", "nonce", "signature", "traceparent", "code", "message",
        "error", "lease_expires_unix_ms", "created_unix_ms", "heartbeat_interval_ms", "origin", "epoch", "dispatch",
        "result", "taken", "refused", "leave", "holder", "server",
    }
)  # fmt: skip
"""Names that say it all, or that the comment of their message explains."""


@pytest.mark.parametrize("path", PROTOS, ids=lambda path: path.name)
def test_every_field_is_explained_or_needs_no_explanation(path: Path) -> None:
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        field = re.match(r"    ?  ?(?:repeated |optional )?(?:map<[^>]+>|[A-Za-z0-9.]+) ([a-z_]+) = [0-9]+;", line)
        if field is None or field[1] in OBVIOUS:
            continue
        says_itself = line.split()[-4][0].isupper()  # a message, which has an explanation of its own
        assert says_itself or _explained(lines, number), f"{field[1]} in {path.name}"


def _explained(lines: list[str], number: int) -> bool:
    """By a comment above it, or above the fields right above it."""
    above = number - 1
    while above >= 0 and re.search(r" = [0-9]+;$", lines[above]):
        above -= 1
    return lines[above].strip().startswith("//")
