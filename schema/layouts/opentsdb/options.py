"""Options of the OpenTSDB layout, named after the configuration keys of a TSD.

Format: docs/spec/opentsdb.md §1.1.
"""

from __future__ import annotations

import dataclasses
import enum

from timebeam.schema.common.option import Option, OptionKind, values_of


class Decimals(enum.StrEnum):
    """How many bytes a decimal value takes (docs/spec/opentsdb.md §1.6).

    Use DOUBLE for a table that a TSD also writes over HTTP: the qualifier holds the width, so with another
    one the same point becomes two cells.
    """

    EXACT = "exact"
    """4 bytes where they hold the value exactly, else 8: telnet `put`."""
    DOUBLE = "double"
    """Always 8 bytes: HTTP /api/put."""
    FLOAT = "float"
    """Always 4 bytes, precision lost: `tsdb import`. A value beyond float32 stays on 8 bytes."""


class CellTime(enum.StrEnum):
    """What the timestamps of cells are."""

    ARRIVAL = "arrival"
    """The arrival of the point: the newest cell wins an instant."""
    EVENT = "event"
    """The time of the point (tsd.storage.use_otsdb_timestamp): the greatest or smallest value wins."""


@dataclasses.dataclass(frozen=True, slots=True)
class OpenTsdbOptions:
    """Options, which must agree with the TSDs that share the tables.

    Attributes:
      table_prefix: put before the table names `tsdb` and `tsdb-uid`.
      salt_width: tsd.storage.salt.width, bytes 0 to 8.
      salt_buckets: tsd.storage.salt.buckets.
      uid_width_metric, uid_width_tagk, uid_width_tagv: tsd.storage.uid.width.*, bytes 1 to 8.
      max_tags: tsd.storage.max_tags.
      decimals: see `Decimals`.
      cell_time: see `CellTime`.
      use_max_value: tsd.storage.use_max_value: with cell time `event` the greatest value of an instant wins,
        else the smallest.
    """

    table_prefix: str = ""
    salt_width: int = 0
    salt_buckets: int = 20
    uid_width_metric: int = 3
    uid_width_tagk: int = 3
    uid_width_tagv: int = 3
    max_tags: int = 8
    decimals: Decimals = Decimals.EXACT
    cell_time: CellTime = CellTime.ARRIVAL
    use_max_value: bool = True

    def __post_init__(self) -> None:
        for name, low, high in (
            ("salt_width", 0, 8),
            ("salt_buckets", 1, 1 << 31),
            ("uid_width_metric", 1, 8),
            ("uid_width_tagk", 1, 8),
            ("uid_width_tagv", 1, 8),
            ("max_tags", 1, 255),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} must be from {low} to {high}, not {value}")
        if self.salt_width and self.salt_buckets > 1 << (8 * self.salt_width):
            raise ValueError(
                f"{self.salt_buckets} salt_buckets do not fit a salt_width of {self.salt_width}: "
                "different buckets would share a salt"
            )

    @property
    def is_event_time(self) -> bool:
        """Whether cells have the time of their points."""
        return self.cell_time is CellTime.EVENT

    def uid_width(self, kind: str) -> int:
        """Bytes of a UID of kind `metrics`, `tagk` or `tagv`."""
        widths = {"metrics": self.uid_width_metric, "tagk": self.uid_width_tagk, "tagv": self.uid_width_tagv}
        return widths[kind]


OPTIONS = (
    Option(
        "salt_width", "bytes of salt in row keys (tsd.storage.salt.width)", OptionKind.WHOLE, 0, stored=True
    ),
    Option("salt_buckets", "salt buckets (tsd.storage.salt.buckets)", OptionKind.WHOLE, 20, stored=True),
    Option(
        "uid_width_metric",
        "bytes of a metric UID (tsd.storage.uid.width.metric)",
        OptionKind.WHOLE,
        3,
        stored=True,
    ),
    Option(
        "uid_width_tagk",
        "bytes of a tag key UID (tsd.storage.uid.width.tagk)",
        OptionKind.WHOLE,
        3,
        stored=True,
    ),
    Option(
        "uid_width_tagv",
        "bytes of a tag value UID (tsd.storage.uid.width.tagv)",
        OptionKind.WHOLE,
        3,
        stored=True,
    ),
    Option("max_tags", "tags that a series may have (tsd.storage.max_tags)", OptionKind.WHOLE, 8),
    Option(
        "decimals",
        "bytes of decimal values: exact (4 where they hold the value, else 8: telnet put), double (always "
        "8: HTTP; use it for tables that a TSD writes over HTTP), float (always 4: tsdb import)",
        default=Decimals.EXACT.value,
        choices=values_of(Decimals),
    ),
    Option(
        "cell_time",
        "opentsdb: cell timestamps; arrival: the newest arrival wins; event: the point's own time, "
        "and the greatest value wins (tsd.storage.use_otsdb_timestamp)",
        default=CellTime.ARRIVAL.value,
        choices=values_of(CellTime),
        stored=True,
    ),
    Option(
        "use_max_value",
        "opentsdb, with --cell_time event: the greatest value of an instant wins, or with false the smallest "
        "(tsd.storage.use_max_value)",
        OptionKind.FLAG,
        True,
        shown_for=("cell_time", (CellTime.EVENT.value,)),
        stored=True,
    ),
)
"""The options of the layout beside `table_prefix`: fields of `OpenTsdbOptions`."""
