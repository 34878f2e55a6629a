"""Rows, bytes, nodes, processor cores and warnings, computed from a load and its encoded sample.

A node's figures: cloud.google.com/bigtable/docs/performance (writes of rows of 1 KB) and /quotas (storage).
Processor cores: costs.json, which `python -m benchmarks.tables` writes from a file of `make bench`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from timebeam.pipelines.sizing.measure import Case, Measured, SizingLoad, cases, measure
from timebeam.schema.core import rows
from timebeam.schema.core.contract import Store
from timebeam.schema.core.point_fragments import Packing

HEADROOM = 0.7
"""Share of a node's figures to plan with; the rest is for peaks, reads, and the loss of a node."""

_MONTH_S = 30 * 86_400
_NEAR = 0.8  # of a limit


class Costs(msgspec.Struct, forbid_unknown_fields=True):
    """Processor seconds for a million points.

    Attributes:
      date, cpu: when and on which processor they were measured.
      files: from JSON lines, by layout and packing: `heroic points`.
      formats: from files into compacted columns of layout `opentsdb`, by format.
      messages: of so many points, into layout `opentsdb`, by packing and number of points.
    """

    date: str
    cpu: str
    files: dict[str, float]
    formats: dict[str, float]
    messages: dict[str, dict[str, float]]

    def of_case(self, layout: str, case: Case, together: int) -> float:
        """Processor seconds for a million points of a case, in JSON.

        Args:
          together: points in a message.
        """
        files = self.files[f"{layout} {case.packing.value}"]
        if not case.stream:
            return files
        packing = case.packing if case.packing is Packing.POINTS else Packing.COMPACTED
        of_points = {int(points): cost for points, cost in self.messages[packing.value].items()}
        least, most = min(of_points), max(of_points)
        # A message costs the same with any number of points.
        message = (of_points[least] - of_points[most]) / (1 / least - 1 / most)
        points = of_points[most] - message / most
        # Another layout costs more or less by what it does from files.
        return max(0.0, message / together + points + files - self.files[f"opentsdb {packing.value}"])


COSTS = msgspec.convert(json.loads(Path(__file__).with_name("costs.json").read_text(encoding="utf-8")), Costs)


@dataclasses.dataclass(frozen=True, slots=True)
class NodeFigures:
    """The capacity of one node.

    Attributes:
      name: the kind of disk.
      writes: mutations per second of rows of 1 KB.
      write_bytes: bytes of mutations per second.
      storage: bytes of tables, compressed.
    """

    name: str
    writes: int
    write_bytes: int
    storage: int


NODES = {
    "ssd": NodeFigures("ssd", 14_000, 14_000_000, 5 * 10**12),
    "hdd": NodeFigures("hdd", 10_000, 10_000_000, 16 * 10**12),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """The needs of one case; rates per second, bytes before compression.

    Attributes:
      row_writes: row mutations.
      cell_writes: cells of these mutations.
      written_bytes: of these mutations; for appends, what Bigtable rewrites: half a cell each time.
      stored_bytes: of all tables, after the retention time.
      month_bytes: added in 30 days.
      shuffled_bytes: grouped by row in Dataflow.
      cores: of workers, for JSON, by the measured cost of a point, with `HEADROOM`.
      nodes: nodes of one cluster, with `HEADROOM`.
      nodes_for: what determines their number: writes, bytes written or storage.
      warnings: about values near a limit.
    """

    case: Case
    measured: Measured
    row_writes: float
    cell_writes: float
    written_bytes: float
    stored_bytes: float
    month_bytes: float
    shuffled_bytes: float
    cores: int
    nodes: int
    nodes_for: str
    warnings: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class SizingPlan:
    """The sizes of all cases of a layout.

    Attributes:
      uids: number of UIDs of each kind of names; empty in a layout without UIDs.
    """

    load: SizingLoad
    node: NodeFigures
    sizes: tuple[Sizes, ...]
    uids: Mapping[str, int]
    warnings: tuple[str, ...]


def plan(layout: Store, load: SizingLoad, node: NodeFigures) -> SizingPlan:
    """Sizes of every packing of a layout.

    Raises:
      RejectedError: the layout cannot hold series such as the load's.
    """
    uids = {kind: (1 << 8 * width) - 1 for kind, width in (layout.uids.widths if layout.uids else {}).items()}
    sizes = tuple(
        _sizes(layout.name, load, node, case, measure(layout, load, case)) for case in cases(layout)
    )
    return SizingPlan(load, node, sizes, uids, tuple(_uid_warnings(load, uids)))


def _sizes(layout: str, load: SizingLoad, node: NodeFigures, case: Case, measured: Measured) -> Sizes:
    points = load.points_per_second
    writes = row_writes(load, case, measured)
    written = points * measured.bytes_per_point
    if case.packing is Packing.APPEND:
        written = writes * measured.row_bytes / 2
    rows_kept = max(1.0, load.retention_s * 1000 / measured.row_span_ms)
    index = load.series * (measured.index_bytes + (rows_kept - 1) * measured.index_bytes_per_span)
    stored = points * load.retention_s * measured.bytes_per_point + index
    needs = {
        "writes": writes / node.writes,
        "bytes written": written / node.write_bytes,
        "storage": stored / node.storage,
    }
    nodes_for = max(needs, key=lambda need: needs[need])
    index_month = load.series * measured.index_bytes_per_span * _MONTH_S * 1000 / measured.row_span_ms
    return Sizes(
        case,
        measured,
        writes,
        writes if case.packing is Packing.APPEND else points * measured.cells_per_point,
        written,
        stored,
        points * _MONTH_S * measured.bytes_per_point + index_month,
        points * measured.shuffled_per_point,
        max(1, math.ceil(points / 1e6 * COSTS.of_case(layout, case, load.together) / HEADROOM)),
        max(1, math.ceil(needs[nodes_for] / HEADROOM)),
        nodes_for,
        tuple(_warnings(load, node, case, measured, writes)),
    )


def row_writes(load: SizingLoad, case: Case, measured: Measured) -> float:
    """Row mutations per second.

    Files: one for each row. Streams: one for each message of a series; if points wait to be packed, one for
    each flush.
    """
    if not case.stream:
        return load.series * 1000 / (measured.points_per_row * load.interval_ms)
    between_s = load.together * load.interval_ms / 1000
    return load.series / (max(between_s, load.flush_s) if case.grouped else between_s)


def _warnings(
    load: SizingLoad, node: NodeFigures, case: Case, measured: Measured, writes: float
) -> Iterator[str]:
    """Warnings about values near a limit of Bigtable."""
    if measured.row_bytes > rows.ROW_BYTES_MOST:
        yield (
            f"rows grow to {measured.row_bytes / 1e6:,.0f} MB: beyond 256 MB Bigtable cannot read them; "
            "choose another layout, or a longer interval"
        )
    elif measured.row_bytes > _NEAR * rows.ROW_BYTES_ADVISED:
        yield f"rows grow to {measured.row_bytes / 1e6:,.0f} MB; they should stay below 100 MB"
    if measured.row_cells > rows.ROW_CELLS_ADVISED:
        yield f"rows have {measured.row_cells:,.0f} cells: a query reads some of them, a check reads all"
    if measured.key_bytes > _NEAR * rows.KEY_BYTES:
        yield f"row keys have {measured.key_bytes:,} bytes of {rows.KEY_BYTES:,}"
    if measured.qualifier_bytes > _NEAR * rows.QUALIFIER_BYTES:
        yield (
            f"qualifiers have {measured.qualifier_bytes:,} bytes of {rows.QUALIFIER_BYTES:,}: what "
            "does not fit goes into further columns"
        )
    hot = writes / load.metrics * measured.busiest_head
    if hot > HEADROOM * node.writes:
        ranges = math.ceil(writes / load.metrics / (HEADROOM * node.writes))
        yield (
            f"hot spot: {hot:,.0f} row writes/s of one metric fall into one range of keys, more than the "
            f"{HEADROOM * node.writes:,.0f} planned for a node; salt it over {max(2, ranges)} buckets "
            "or more, or split the metric"
        )
    if case.packing is Packing.APPEND:
        yield (
            "each append makes Bigtable rewrite its cell, read-modify-write in one cluster; the bytes "
            "written include this, and the number of nodes is a lower bound"
        )
    if case.stream and case.packing is Packing.COMPACTED and load.together == 1:
        yield "messages of one point make a column each: packing gains nothing, and `points` needs no shuffle"


def _uid_warnings(load: SizingLoad, uids: Mapping[str, int]) -> Iterator[str]:
    """Warnings about kinds of names that use up their UIDs."""
    for kind, last in uids.items():
        names = load.names[kind]
        if names > last:
            yield (
                f"{names:,} names of kind {kind} do not fit {last:,} UIDs: use wider UIDs, which all writers "
                "and readers of the tables must share from the start"
            )
        elif names > _NEAR * last:
            yield f"{names:,} of {last:,} UIDs of kind {kind} are used; a UID is never given back"
