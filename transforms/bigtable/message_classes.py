"""Protobuf classes of a few fields each, where the client's own are slow to import or to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto


class MessageField(NamedTuple):
    """A field of a message; `message` names the message that it holds."""

    name: str
    number: int
    kind: FieldDescriptorProto.Type.ValueType
    repeated: bool = False
    message: str = ""


def message_classes(messages: Mapping[str, Sequence[MessageField]]) -> dict[str, Any]:
    """By name the classes of messages with these fields; all others are unknown fields to them."""
    file = FileDescriptorProto(name="timebeam.proto", package="timebeam", syntax="proto2")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field in fields:
            message.field.add(
                name=field.name,
                number=field.number,
                type=field.kind,
                label=FieldDescriptorProto.LABEL_REPEATED
                if field.repeated
                else FieldDescriptorProto.LABEL_OPTIONAL,
                type_name=f".timebeam.{field.message}" if field.message else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"timebeam.{name}"))
        for name in messages
    }
