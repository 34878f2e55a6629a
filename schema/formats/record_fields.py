"""Records of named fields: how they are written, and which field holds what of a point."""

from __future__ import annotations

import dataclasses
import enum
import re
from typing import NamedTuple

from timebeam.schema.formats.base import Framing


class RecordEncoding(enum.StrEnum):
    """How records of named fields are written."""

    JSON = "json"
    CSV = "csv"
    AVRO = "avro"

    @property
    def framing(self) -> Framing:
        """How files are cut."""
        return Framing.AVRO if self is RecordEncoding.AVRO else Framing.LINES


_ENTRY = re.compile(r"(metric|timestamp|value|tags|tag:[^=:]+)(:?=)(.+)")


class FieldSource(NamedTuple):
    """A field that holds a string, or a constant string."""

    text: str
    constant: bool


@dataclasses.dataclass(frozen=True, slots=True)
class RecordFields:
    """The fields of a record that hold the parts of a point.

    Attributes:
      timestamp, value: fields with a number, or with an array of numbers.
      tags: a field with a map of tags; empty if there is none.
      tag: (tag key, source of its value) for tags with a field of their own.
    """

    metric: FieldSource
    timestamp: str
    value: str
    tags: str
    tag: tuple[tuple[str, FieldSource], ...]

    @classmethod
    def of(cls, text: str, option: str) -> RecordFields:
        """Parses entries such as `metric=name`, `metric:=constant`, `tag:host=field`, separated by commas.

        Args:
          option: the name of the option, for messages.

        Raises:
          ValueError: an entry is malformed, duplicate or missing.
        """
        sources: dict[str, FieldSource] = {}
        for entry in text.split(","):
            match = _ENTRY.fullmatch(entry.strip())
            if not match or (match[2] == ":=" and match[1] in ("timestamp", "value", "tags")):
                raise ValueError(
                    f"{option}: {entry!r} is not one of metric=FIELD, metric:=TEXT, timestamp=FIELD, "
                    "value=FIELD, tags=FIELD, tag:KEY=FIELD, tag:KEY:=TEXT"
                )
            if match[1] in sources:
                raise ValueError(f"{option}: duplicate {match[1]}")
            sources[match[1]] = FieldSource(match[3], match[2] == ":=")
        missing = {"metric", "timestamp", "value"} - sources.keys()
        if missing:
            raise ValueError(f"{option} lacks {', '.join(sorted(missing))}")
        tags = sources.get("tags")
        return cls(
            sources["metric"],
            sources["timestamp"].text,
            sources["value"].text,
            tags.text if tags else "",
            tuple((key[4:], source) for key, source in sources.items() if key.startswith("tag:")),
        )

    def names(self) -> set[str]:
        """The fields that a record must have."""
        field_names = {source.text for _, source in (("", self.metric), *self.tag) if not source.constant}
        return (field_names | {self.timestamp, self.value, self.tags}) - {""}
