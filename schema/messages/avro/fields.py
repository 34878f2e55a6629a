"""Which fields of an Avro record hold the metric, the timestamp, the value and the tags of a point."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Container
from typing import NamedTuple

_ENTRY = re.compile(r"(metric|timestamp|value|tags|tag:[^=:]+)(:?=)(.+)")


class FieldSource(NamedTuple):
    """Where a text comes from: from a field, or it is the text itself."""

    text: str
    constant: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Fields:
    """Which fields of a record hold what.

    Attributes:
      timestamp, value: fields of one number each, or of an array.
      tags: a field with a map of tags; empty if there is none.
      tag: a tag key and the source of its value, for tags that are fields of their own.
    """

    metric: FieldSource
    timestamp: str
    value: str
    tags: str
    tag: tuple[tuple[str, FieldSource], ...]

    @classmethod
    def of(cls, text: str) -> Fields:
        """Fields from entries like `metric=name`, `metric:=constant`, `tag:host=field`, with commas between.

        Raises:
          ValueError: an entry is none, stands twice or is missing.
        """
        sources: dict[str, FieldSource] = {}
        for entry in text.split(","):
            match = _ENTRY.fullmatch(entry.strip())
            if not match or (match[2] == ":=" and match[1] in ("timestamp", "value", "tags")):
                raise ValueError(
                    f"avro_fields: {entry!r} is none of metric=FIELD, metric:=TEXT, timestamp=FIELD, "
                    "value=FIELD, tags=FIELD, tag:KEY=FIELD, tag:KEY:=TEXT"
                )
            if match[1] in sources:
                raise ValueError(f"avro_fields: {match[1]} stands twice")
            sources[match[1]] = FieldSource(match[3], match[2] == ":=")
        missing = {"metric", "timestamp", "value"} - sources.keys()
        if missing:
            raise ValueError(f"avro_fields lacks {', '.join(sorted(missing))}")
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
        texts = {source.text for _, source in (("", self.metric), *self.tag) if not source.constant}
        return (texts | {self.timestamp, self.value, self.tags}) - {""}


_POINT = Fields.of("metric=metric,timestamp=timestamp,value=value,tags=tags")
_POINT_BATCH = Fields.of("metric=metric,timestamp=timestamps,value=values,tags=tags")


def default_fields(names: Container[str]) -> Fields:
    """The fields of a record as in point.avsc or point_batch.avsc, which its field names tell."""
    return _POINT_BATCH if "timestamps" in names else _POINT
