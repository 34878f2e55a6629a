"""The options of KairosDB's tables, and the three row specs of a store; imports no numpy.

Format: docs/spec/kairosdb.md §3. Source: datastore/cassandra/RowSpec of KairosDB 1.3.0, and its table `spec`.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from timebeam.schema.core.declared_options import DeclaredOptions, archive_option, option

if TYPE_CHECKING:
    from timebeam.schema.bits.arrays import Int64s

Ints = TypeVar("Ints", int, "Int64s")

FAMILY = "d"
"""Family of points that are kept forever."""


class RowSpec(enum.StrEnum):
    """How a time becomes a row time and a column; rows do not tell which row spec a store has.

    >>> offset_ms = 1300000000000 % RowSpec.LEGACY.width_ms
    >>> 1300000000000 - offset_ms  # the row time
    1299110400000
    >>> hex(RowSpec.LEGACY.columns(999)), hex(RowSpec.MILLISECONDS.columns(999)), RowSpec.SECONDS.columns(999)
    ('0x7ce', '0x3e7', 0)
    """

    LEGACY = "legacy"
    """Offset in ms, shifted by one bit: stores with data from before KairosDB 1.3.0."""
    MILLISECONDS = "milliseconds"
    """Offset in ms: stores created by 1.3.0 or later."""
    SECONDS = "seconds"
    """Offset in seconds, in rows of half an hour: times read back up to a second early, so read-only."""

    @property
    def width_ms(self) -> int:
        return 1_814_400 if self is RowSpec.SECONDS else 1_814_400_000

    @property
    def unit_ms(self) -> int:
        """The unit of a column number, in ms."""
        return 1000 if self is RowSpec.SECONDS else 1

    def columns(self, offsets_ms: Ints) -> Ints:
        """The column numbers (unsigned, 4 bytes) of times at these offsets from the row time."""
        return offsets_ms << 1 if self is RowSpec.LEGACY else offsets_ms // self.unit_ms

    def offsets_ms(self, columns: Ints) -> Ints:
        """The offsets of columns from the row time, in ms."""
        return columns >> 1 if self is RowSpec.LEGACY else columns * self.unit_ms


def parse_retention(text: str) -> tuple[int, ...]:
    """The retention classes in a text such as `7,90`; none in an empty one.

    Raises:
      ValueError: it is not a list of whole numbers.
    """
    days = [number.strip() for number in text.split(",")] if text.strip() else []
    if not all(number.isascii() and number.isdigit() for number in days):
        raise ValueError(f"retention must be days separated by commas, such as 7,90, not {text!r}")
    return tuple(int(number) for number in days)


class Tables(NamedTuple):
    """Names of the layout's tables."""

    data: str
    row_keys: str
    strings: str


@dataclasses.dataclass(frozen=True, slots=True)
class KairosDbOptions(DeclaredOptions):
    """Options, which must agree with all other writers of the tables.

    Attributes:
      table_prefix: put before the table names `data_points`, `row_keys` and `string_index`.
    """

    table_prefix: str = ""
    row_spec: RowSpec = option(
        "kairosdb: how times are stored in columns: legacy (stores with data from before "
        "KairosDB 1.3.0), milliseconds (created by 1.3.0 or later), seconds (reading only)",
        RowSpec.LEGACY,
        stored=True,
    )
    retention: tuple[int, ...] = option(
        "kairosdb: retention classes in days, such as 7,90: each is a family, d7, d90, in addition to d",
        (),
        unset="",
        read=parse_retention,
        regex=r"([0-9]+(,[0-9]+)*)?",
        example="7,90",
        stored=True,
    )
    retention_class: int = option(
        "kairosdb: the class that points are written to, in days; 0: kept forever", 0
    )
    archive: bool = archive_option()

    def __post_init__(self) -> None:
        if len(set(self.retention)) != len(self.retention) or any(days < 1 for days in self.retention):
            raise ValueError(f"retention must be different days of at least 1, not {_text(self.retention)}")
        if self.retention_class and self.retention_class not in self.retention:
            classes = _text((0, *self.retention))
            raise ValueError(f"retention_class must be one of {classes}, not {self.retention_class}")

    def head_bytes(self, key: bytes) -> int:
        """See `timebeam.schema.archive.archive_rows.SeriesHeads`; metric and NUL, also of data rows.

        Raises:
          ValueError: the key has no NUL.
        """
        if b"\0" not in key:
            raise ValueError(f"row key {key[:80].hex()} is not metric, 00 and more")
        return key.index(b"\0") + 1

    @property
    def tables(self) -> Tables:
        """Names of the tables, with prefix."""
        prefix = self.table_prefix
        return Tables(prefix + "data_points", prefix + "row_keys", prefix + "string_index")

    @property
    def families(self) -> tuple[str, ...]:
        """The families of `data_points`."""
        return (FAMILY, *(f"{FAMILY}{days}" for days in self.retention))

    @property
    def family(self) -> str:
        """The family that this run writes."""
        return f"{FAMILY}{self.retention_class}" if self.retention_class else FAMILY


def _text(days: Sequence[int]) -> str:
    return ",".join(map(str, days))
