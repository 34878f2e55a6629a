"""A store of a firm's own as a store of timebeam: rows of an hour with keys that people read.

| part | bytes |
|---|---|
| key | metric, `#`, the hour as 2026112410 (UTC), `#`, `key=value` of each tag, sorted, joined by `,` |
| qualifier | milliseconds since the hour, 4 bytes, big-endian |
| value | float64, 8 bytes, big-endian |

So that no two series share a row, names with one of the separators are rejected.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from timebeam.formats import option
from timebeam.stores import CellStore, StoreOptions

_FLOAT = 1  # the kind of floats; 0 are integers

Kinds = NDArray[np.uint8]
Bits = NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class FirmHoursOptions(StoreOptions):
    """The options of the store; bytes depend on the separator, so it is stored with the tables."""

    firm_hours_separator: str = option(
        "firm-hours: what separates metric, hour and tags in keys", "#", choices=("#", "|"), stored=True
    )


class FirmHours(CellStore):
    """The store `firm-hours`."""

    name = "firm-hours"
    table = "hours"
    value_bytes = 8
    options_class = FirmHoursOptions
    options: FirmHoursOptions

    @property
    def _separator(self) -> bytes:
        return self.options.firm_hours_separator.encode()

    def head(self, metric: str) -> bytes:
        return metric.encode() + self._separator

    def base(self, base_ms: int) -> bytes:
        hour = datetime.datetime.fromtimestamp(base_ms // 1000, datetime.UTC)
        return hour.strftime("%Y%m%d%H").encode()

    def tail(self, tags: Mapping[str, str]) -> bytes:
        pairs = ",".join(f"{key}={tags[key]}" for key in sorted(tags))
        return self._separator + pairs.encode()

    def parse(self, key: bytes) -> tuple[str, dict[str, str], int]:
        metric, hour, pairs = key.split(self._separator)
        start = datetime.datetime.strptime(hour.decode(), "%Y%m%d%H").replace(tzinfo=datetime.UTC)
        tags = dict(pair.split("=") for pair in pairs.decode().split(",")) if pairs else {}
        return metric.decode(), tags, int(start.timestamp()) * 1000

    def values_stored(self, kinds: Kinds, bits: Bits) -> NDArray[np.bool_]:
        """Finite floats, and integers that a float64 holds."""
        small = (kinds == 0) & (np.abs(bits.astype(np.float64)) <= 2**53)
        return small | ((kinds == _FLOAT) & np.isfinite(bits.view(np.float64)))

    def write_values(self, kinds: Kinds, bits: Bits) -> Kinds:
        floats = np.where(kinds == _FLOAT, bits.view(np.float64), bits.astype(np.float64))
        return floats.astype(">f8").view(np.uint8).reshape(-1, 8)

    def read_values(self, content: Kinds) -> tuple[Kinds, Bits, NDArray[np.bool_]]:
        bits = np.ascontiguousarray(content).view(">i8").ravel().astype(np.int64)
        kinds = np.full(len(bits), _FLOAT, np.uint8)
        return kinds, bits, np.isfinite(bits.view(np.float64))
