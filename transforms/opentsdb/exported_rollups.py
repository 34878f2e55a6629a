"""The numbers of OpenTSDB's rollup tables as points, for an export."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.core.selection import Finding, Reader, Selection
from timebeam.schema.rollup.rollup_config import RollupConfig, RollupInterval
from timebeam.schema.stores.opentsdb import keys, select
from timebeam.schema.stores.opentsdb.rollup_tables import DecodedRollups, decode_rollups
from timebeam.transforms.copy.copied_points import BATCH_POINTS
from timebeam.transforms.dead_letters.letter import rejected_row

if TYPE_CHECKING:
    from timebeam.schema.stores import OpenTsdb

AGGREGATOR = "_rollup"
"""The tag key under which a series of rollups has its aggregator: `sum`, `count`, …"""


@dataclasses.dataclass(frozen=True, slots=True)
class RollupReader:
    """The rollups of one interval.

    Attributes:
      interval: not the default interval, whose table has points.
    """

    layout: OpenTsdb
    config: RollupConfig
    interval: RollupInterval

    @property
    def table(self) -> str:
        """Name of the table, with prefix."""
        return self.layout.options.table_prefix + self.interval.table

    def batches(self, start_ms: int, end_ms: int, reader: Reader) -> Iterator[PointBatch | Rejected]:
        """The rollups of the intervals that begin in [start_ms, end_ms), and rejections of unreadable rows.

        A series is that of the row, with a tag `AGGREGATOR`; a time is the start of an interval.
        """
        names = {number: name for name, number in self.config.aggregation_ids.items()}
        edges_s = np.array([start_ms, end_ms - 1], np.int64) // 1000
        first_ms, last_ms = (self.interval.row_span.bases(edges_s) * 1000).tolist()
        selection = Selection(None, {}, first_ms, last_ms)
        pending: list[tuple[Series, DecodedRollups]] = []
        size = 0
        layout = self.layout
        for selected in select.select(layout, self.table, selection, reader):
            if isinstance(selected, Finding):
                source = f"row of table {selected.table}"
                yield Rejected(selected.key, Reason.CORRUPT_FILE, selected.text, Stage.READ, source)
                continue
            base_s = keys.base_s_of(layout.options, selected.row.key)
            decoded = decode_rollups(selected.row.cells, base_s, self.interval, self.config.aggregation_ids)
            for text in decoded.corruption:
                yield rejected_row(selected.row, Reason.CORRUPT_FILE, text, Stage.READ)
            pending.append((selected.series, decoded))
            size += len(decoded.ids)
            if size >= BATCH_POINTS:
                yield _batch(pending, names, start_ms, end_ms)
                pending, size = [], 0
        if pending:
            yield _batch(pending, names, start_ms, end_ms)


def _batch(
    rows: list[tuple[Series, DecodedRollups]], names: dict[int, str], start_ms: int, end_ms: int
) -> PointBatch:
    """The rollups of rows that begin in [start_ms, end_ms)."""
    numbers: dict[Series, int] = {}
    indices = []
    for stored, decoded in rows:
        number_of_id = np.zeros(256, np.int32)
        for number in np.unique(decoded.ids).tolist():
            series = Series.of(stored.metric, {**dict(stored.tags), AGGREGATOR: names[number]})
            number_of_id[number] = numbers.setdefault(series, len(numbers))
        indices.append(number_of_id[decoded.ids])
    starts_s, kinds, bits, arrivals_ms = (
        np.concatenate([getattr(decoded, name) for _, decoded in rows])
        for name in ("starts_s", "kinds", "bits", "timestamps_ms")
    )
    in_ms = np.ones(len(starts_s), np.bool_)
    batch = PointBatch(
        list(numbers), np.concatenate(indices), starts_s * 1000, in_ms, kinds, bits, arrivals_ms
    )
    return batch.take(np.flatnonzero((batch.times_ms >= start_ms) & (batch.times_ms < end_ms)))
