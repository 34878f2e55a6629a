"""Message formats by name: bytes in, points in columns and refused records out."""

from __future__ import annotations

from schema.messages.base import Message, MessageFormat, Parsed, Point
from schema.messages.opentsdb_json import OpenTsdbJson
from schema.messages.opentsdb_text import OpenTsdbText

FORMATS: dict[str, type[MessageFormat]] = {cls.name: cls for cls in (OpenTsdbJson, OpenTsdbText)}


def message_format(name: str) -> MessageFormat:
    """A new instance of the format of that name.

    Raises:
      ValueError: there is none; the message lists those there are.
    """
    if name not in FORMATS:
        raise ValueError(f"unknown message format {name!r}: choose one of {', '.join(sorted(FORMATS))}")
    return FORMATS[name]()


__all__ = ["FORMATS", "Message", "MessageFormat", "Parsed", "Point", "message_format"]
