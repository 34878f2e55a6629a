"""Message formats by name: bytes in, points in columns and refused records out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schema.messages.avro import Avro
from schema.messages.base import Framing, Message, MessageFormat, Parsed, Point
from schema.messages.heroic_json import HeroicJson
from schema.messages.heroic_proto import HeroicProto
from schema.messages.influx import Influx
from schema.messages.kairosdb_json import KairosDbJson
from schema.messages.kairosdb_text import KairosDbText
from schema.messages.opentsdb_annotations import OpenTsdbAnnotations
from schema.messages.opentsdb_json import OpenTsdbJson
from schema.messages.opentsdb_text import OpenTsdbText

FORMATS: dict[str, type[MessageFormat]] = {
    cls.name: cls
    for cls in (
        *(OpenTsdbJson, OpenTsdbText, OpenTsdbAnnotations, Influx, Avro),
        *(HeroicJson, HeroicProto, KairosDbJson, KairosDbText),
    )
}


def message_format(name: str, options: Mapping[str, Any] | None = None) -> MessageFormat:
    """A new instance of the format of that name, with its options by name.

    Raises:
      ValueError: there is none of that name, or one of its options makes no sense.
    """
    if name not in FORMATS:
        raise ValueError(f"unknown message format {name!r}: choose one of {', '.join(sorted(FORMATS))}")
    return FORMATS[name].from_options(options or {})


__all__ = ["FORMATS", "Framing", "Message", "MessageFormat", "Parsed", "Point", "message_format"]
