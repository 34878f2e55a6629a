"""The JSON of a firm's gateways as a message format of timebeam: an object per line, or a document.

{"site":"lga","device":"pump-7","at":"2026-11-24T10:00:00.250Z","readings":{"bar":3.25,"rpm":900}}
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterator
from typing import Any

import msgspec

from timebeam.formats import FormatOptions, Framing, Reason, RecordFormat, RejectedError, option


@dataclasses.dataclass(frozen=True, slots=True)
class FirmOptions(FormatOptions):
    """The options of the format, as of its commands."""

    firm_json_prefix: str = option("firm-json: what the names of metrics begin with", "plant.")


class FirmJson(RecordFormat):
    """A point per reading: metric PREFIX + its name, tags `site` and `device`."""

    name = "firm-json"
    example = b'{"site":"lga","device":"pump-7","at":"2026-11-24T10:00:00.250Z","readings":{"bar":3.25}}'
    framing = Framing.JSON
    options_class = FirmOptions
    options: FirmOptions

    def points(self, record: bytes) -> Iterator[tuple[str, dict[str, str], int, int | float] | RejectedError]:
        document: Any = msgspec.json.decode(record)  # its errors are ValueErrors
        if not isinstance(document, dict):
            raise ValueError("a message is an object")
        tags: dict[str, Any] = {key: document.get(key) for key in ("site", "device")}
        if not all(isinstance(value, str) and value for value in tags.values()):
            raise RejectedError(Reason.BAD_TAG, "site and device must be strings")
        at, readings = document.get("at"), document.get("readings")
        if not isinstance(at, str) or not isinstance(readings, dict):
            raise ValueError("at must be a time and readings an object")
        try:
            time = datetime.datetime.fromisoformat(at)
            time_ms = (time - _EPOCH) // datetime.timedelta(milliseconds=1)
        except (ValueError, TypeError, OverflowError) as error:  # TypeError: it has no time zone
            raise RejectedError(
                Reason.BAD_TIMESTAMP, f"{at[:40]!r} is no time as 2026-11-24T10:00Z"
            ) from error
        for name, number in readings.items():
            if number is not None:  # the sensor is off
                yield self.options.firm_json_prefix + name, tags, time_ms, number


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
