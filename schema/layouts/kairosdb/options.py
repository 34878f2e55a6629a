"""Options of the KairosDB layout, and the three row specs that a store can have (docs/spec/kairosdb.md §2).

Source: datastore/cassandra/RowSpec of KairosDB 1.3.0, and its table `spec`.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import TypeVar

from timebeam.schema.common.option import Option, OptionKind, values_of
from timebeam.schema.points import Int64s

Ints = TypeVar("Ints", int, Int64s)

FAMILY = "d"
"""Family of points that are kept forever."""


class RowSpec(enum.StrEnum):
    """How a time becomes a row time and a column; rows do not tell which row spec a store has."""

    LEGACY = "legacy"
    """Offset in ms, shifted by one bit: stores with data from before KairosDB 1.3.0."""
    MILLISECONDS = "milliseconds"
    """Offset in ms: stores created by 1.3.0 or later."""
    SECONDS = "seconds"
    """Offset in seconds, in rows of half an hour: times read back up to a second early, so read-only."""

    @property
    def width_ms(self) -> int:
        """The width of a row in ms."""
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


@dataclasses.dataclass(frozen=True, slots=True)
class KairosDbOptions:
    """Options, which must agree with all other writers of the tables.

    Attributes:
      table_prefix: put before the table names `data_points`, `row_keys` and `string_index`.
      row_spec: see `RowSpec`.
      retention: the retention classes, in days; each is a family of `data_points`, such as `d7`.
      retention_class: the class that this run writes, in days; 0 for the family `d`, kept forever.
    """

    table_prefix: str = ""
    row_spec: RowSpec = RowSpec.LEGACY
    retention: tuple[int, ...] = ()
    retention_class: int = 0

    def __post_init__(self) -> None:
        if len(set(self.retention)) != len(self.retention) or any(days < 1 for days in self.retention):
            raise ValueError(f"retention must be different days of at least 1, not {_text(self.retention)}")
        if self.retention_class and self.retention_class not in self.retention:
            classes = _text((0, *self.retention))
            raise ValueError(f"retention_class must be one of {classes}, not {self.retention_class}")

    @property
    def families(self) -> tuple[str, ...]:
        """The families of `data_points`."""
        return (FAMILY, *(f"{FAMILY}{days}" for days in self.retention))

    @property
    def family(self) -> str:
        """The family that this run writes."""
        return f"{FAMILY}{self.retention_class}" if self.retention_class else FAMILY


def parse_retention(text: str) -> tuple[int, ...]:
    """The retention classes in a text such as `7,90`; none in an empty one.

    Raises:
      ValueError: it is not a list of whole numbers.
    """
    days = [number.strip() for number in text.split(",")] if text.strip() else []
    if not all(number.isascii() and number.isdigit() for number in days):
        raise ValueError(f"retention must be days separated by commas, such as 7,90, not {text!r}")
    return tuple(int(number) for number in days)


def _text(days: Sequence[int]) -> str:
    return ",".join(map(str, days))


OPTIONS = (
    Option(
        "row_spec",
        "kairosdb: how times become columns: legacy (stores with data from before KairosDB 1.3.0), "
        "milliseconds (created by 1.3.0 or later), seconds (reading only)",
        default=RowSpec.LEGACY.value,
        choices=values_of(RowSpec),
        stored=True,
    ),
    Option(
        "retention",
        "kairosdb: retention classes in days, such as 7,90: each is a family, d7, d90, in addition to d",
        default="",
        regex=r"([0-9]+(,[0-9]+)*)?",
        example="7,90",
    ),
    Option(
        "retention_class",
        "kairosdb: the class that points are written to, in days; 0: kept forever",
        OptionKind.WHOLE,
        0,
    ),
)
"""The options of the layout beside `table_prefix`: fields of `KairosDbOptions`."""
