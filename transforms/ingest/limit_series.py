"""Rejects new series beyond limits: the metric that grows is rejected, all others go on.

A series is new if a name of it has no UID, or if it is in no index table. With OpenTSDB's metadata
(`--meta`) it is also new if its names have UIDs, but it is not in the meta table.

What is counted and where: `timebeam.schema.series.series_limits`. A worker process adds what it has let in to
the counts at the end of each bundle. Then, and before it decides on new series when `MERGE_SECONDS` have
passed, it reads what others have added. The count of a metric that has none starts from its series in the
meta table or index tables, or else in its data rows of the last two hours.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from timebeam.schema.bits.lru_cache import LruCache, batched
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.bits.times import HOUR_MS
from timebeam.schema.core.contract import Store
from timebeam.schema.core.points import PointBatch, Series, SeriesKey
from timebeam.schema.core.rows import Cell, Row, TableSpec
from timebeam.schema.series import series_limits
from timebeam.schema.series.series_limits import SeriesCount, SeriesLimits
from timebeam.schema.series.series_patterns import MOST_VALUES, Listed, SeriesQuery, limit_of
from timebeam.schema.stores import find_opentsdb
from timebeam.transforms.bigtable.compare_and_set import Replacement, update_rows
from timebeam.transforms.bigtable.target import BigtableError, Target
from timebeam.transforms.opentsdb.stored_series import from_data, from_meta, meta_keys
from timebeam.transforms.read.table_reader import TableReader, existing_keys, read_rows

MERGE_SECONDS = 10.0
REJECTED_SECONDS = 60.0
"""A rejected series is rejected without a look into the tables for so long, unless its metric's limit
rises."""

MOST_METRICS = 2_000
"""Metrics with new series whose counts are in memory."""

MOST_REJECTED = 100_000
"""Rejected series in memory, about 1 KB each; others are looked up again."""

MOST_SEEDS = 1_000_000
"""Series of a metric that a count starts from."""

_METRICS_AT_ONCE = MOST_METRICS // 4
_MINUTE_MS = 60_000
_SEED_MS = 2 * HOUR_MS


class LimitState:
    """What a process remembers: counts by row key, new series by metric and minute, rejected series."""

    def __init__(self, cache_size: int) -> None:
        self.counts: LruCache[bytes, SeriesCount] = LruCache(MOST_METRICS)
        self.new: LruCache[tuple[str, int], int] = LruCache(10 * MOST_METRICS)
        self.rejected: LruCache[Series, tuple[float, RejectedError]] = LruCache(
            min(cache_size, MOST_REJECTED)
        )
        self.changed: dict[bytes, SeriesCount] = {}
        self.merged_s = time.monotonic()


class SeriesLimiter:
    """Decides which of the series that a process sees for the first time are let in. It can be pickled."""

    def __init__(
        self,
        target: Target,
        layout: Store,
        series_limits: SeriesLimits,
        table: TableSpec,
        *,
        with_meta: bool,
        dry_run: bool,
    ) -> None:
        """Decides by the limits.

        Args:
          table: of the counts.
          with_meta: whether the ingest writes metadata, so that the meta table has all series.
        """
        self._target, self._limits = target, series_limits
        self._indexed = layout.index
        self._meta = find_opentsdb(layout)
        self._with_meta, self._dry_run = with_meta, dry_run
        self.table = table

    def new_state(self, cache_size: int) -> LimitState:
        """What a process remembers, at first."""
        return LimitState(cache_size)

    def rejections(
        self, state: LimitState, candidates: Mapping[Series, SeriesKey | None], batch: PointBatch
    ) -> dict[Series, RejectedError]:
        """Why each of the series that are not let in is rejected.

        Args:
          candidates: the key of each series that the process has not cached; None if a name has no UID.
          batch: the points of the series.

        Raises:
          GoogleAPICallError: the counts cannot be read or written.
        """
        now = time.monotonic()
        rejected: dict[Series, RejectedError] = {}
        for series in candidates:
            if (before := state.rejected.get(series)) is not None and before[0] > now:
                rejected[series] = before[1]
        rest = {series: key for series, key in candidates.items() if series not in rejected}
        if not rest:
            return rejected
        existing = self._existing(rest, batch)
        minute = int(batch.arrivals_ms.max()) // _MINUTE_MS
        by_metric: dict[str, list[Series]] = {}
        for series in rest:
            by_metric.setdefault(series.metric, []).append(series)
        for together in batched(by_metric, _METRICS_AT_ONCE):
            self._load(state, together)
            if now - state.merged_s > MERGE_SECONDS:
                self.merge(state, map(series_limits.metric_row, together))
            for series in itertools.chain.from_iterable(map(by_metric.__getitem__, together)):
                error = None if series in existing else self._rejection(state, series, minute)
                if error is None:
                    self._count(state, series)
                else:
                    rejected[series] = error
                    state.rejected[series] = (now + REJECTED_SECONDS, error)
        return rejected

    def merge(self, state: LimitState, rows: Iterable[bytes] = ()) -> None:
        """Adds what is new in the counts to those in the table, and takes over what others have added.

        Args:
          rows: more counts in memory that may have changed in the table.

        Raises:
          GoogleAPICallError: the counts cannot be read or written.
        """
        if not (state.changed or rows):
            return
        state.merged_s = time.monotonic()
        pending, state.changed = state.changed, {}
        remembered = {key: state.counts.get(key) for key in (*rows, series_limits.ALL_ROW)}
        pending |= {key: count for key, count in remembered.items() if count is not None}

        def change(key: bytes, row: Row | None) -> list[Replacement]:
            old = row.cells if row else ()
            self._add(pending[key], key, old)
            return [Replacement(key, *cells) for cells in pending[key].cells(old)]

        keys = pending if self._dry_run else update_rows(self._target, self.table.name, pending, change)
        state.changed |= {key: pending[key] for key in keys}

    def _existing(self, candidates: Mapping[Series, SeriesKey | None], batch: PointBatch) -> set[Series]:
        """The series that are stored already."""
        if self._indexed is not None:
            numbers = {series: number for number, series in enumerate(batch.series)}
            bases = dict(self._indexed.entries(batch))
            keys_of: dict[Series, Sequence[bytes]] = {}
            table = ""
            for series in candidates:
                if numbers[series] in bases:
                    table, keys_of[series] = self._indexed.keys(series, bases[numbers[series]])
            return _with_rows(self._target, table, keys_of)
        named = {series: key for series, key in candidates.items() if key is not None}
        if self._meta is None or not self._with_meta:
            return set(named)
        return _with_rows(self._target, *meta_keys(self._meta, named))

    def _rejection(self, state: LimitState, series: Series, minute: int) -> RejectedError | None:
        """Why a new series is not let in; None if it is."""
        metric, chosen = series.metric, self._limits
        count = state.counts.get(series_limits.metric_row(metric))
        assert count is not None
        most = limit_of(chosen.tag_values, metric)
        for key, value in series.tags + series.resources:
            values = count.values.get(key, set())
            if most is not None and len(values) >= most and series_limits.hash_of(value) not in values:
                return _rejected(
                    series, f"tag key {key} has {len(values):,} values", "--max-tag-values", most
                )
            if most is not None and not count.counts_key(key):
                text = f"it has {series_limits.MOST_KEYS} tag keys, and {key} is another one"
                return _rejected(series, text, "--max-tag-values", most)
        most = limit_of(chosen.new_series, metric)
        if most is not None and (new := state.new.get((metric, minute)) or 0) >= most:
            grown = count.largest_key()
            return _rejected(
                series, f"{new:,} new series arrived in this minute; {grown}", "--max-new-series", most
            )
        most = limit_of(chosen.series, metric)
        if most is not None and count.series >= most:
            return _rejected(
                series, f"it has {count.series:,} series; {count.largest_key()}", "--max-series", most
            )
        total = state.counts.get(series_limits.ALL_ROW)
        most = chosen.all_series
        if most is not None and total is not None and total.series >= most:
            text = f"all metrics have {total.series:,} series, it has {count.series:,}; {count.largest_key()}"
            return _rejected(series, text, "--max-all-series", most)
        state.new[metric, minute] = (state.new.get((metric, minute)) or 0) + 1
        return None

    def _count(self, state: LimitState, series: Series) -> None:
        """Counts a series that is stored, or is let in."""
        for row, values in ((series_limits.metric_row(series.metric), True), (series_limits.ALL_ROW, False)):
            count = state.counts.get(row)
            if count is not None:
                count.add(series, values=values)
                state.changed[row] = count

    def _load(self, state: LimitState, metrics: Iterable[str]) -> None:
        """Reads the counts of metrics that are not in memory, or makes them from the tables."""
        rows = {series_limits.metric_row(metric): metric for metric in metrics}
        rows |= {} if self._limits.all_series is None else {series_limits.ALL_ROW: ""}
        missing = [key for key in rows if state.counts.get(key) is None]
        stored = read_rows(self._target, self.table.name, missing) if missing else {}
        if len(missing) + len(state.changed) > _METRICS_AT_ONCE:
            self.merge(state)  # before counts are dropped from memory
        for key in missing:
            most = limit_of(self._limits.tag_values, rows[key])
            count = SeriesCount(series_limits.SHOWN_VALUES if most is None else MOST_VALUES)
            if key in stored:
                self._add(count, key, stored[key].cells)
            else:
                for series in itertools.islice(self._seeds(rows[key]), MOST_SEEDS):
                    count.add(series, values=key != series_limits.ALL_ROW)
                    state.changed[key] = count
            state.counts[key] = count

    def _add(self, count: SeriesCount, key: bytes, cells: Sequence[Cell]) -> None:
        """Adds what a row of the table has counted; raises BigtableError if it is corrupt."""
        try:
            count.merge(cells)
        except ValueError as error:
            raise BigtableError(
                f"table {self.table.name}, row {key[:80]!r}: {error}: delete the row; it is created again"
            ) from error

    def _seeds(self, metric: str) -> Iterator[Series]:
        """The stored series of a metric, or of all metrics for an empty one; each at least once."""
        if self._indexed is not None:
            entries = self._indexed.series(metric or None, TableReader(self._target))
            return (series for series, _ in entries)
        assert self._meta is not None
        query = SeriesQuery(metric or "*", {})
        if self._with_meta:
            results = from_meta(self._target, self._meta, query)
        else:
            start_ms = int(time.time() * 1000) - _SEED_MS
            results = from_data(self._target, self._meta, query, start_ms=start_ms)
        return (result.series for result in results if isinstance(result, Listed))


def _with_rows(target: Target, table: str, keys_of: Mapping[Series, Sequence[bytes]]) -> set[Series]:
    """The series of which a row with one of their keys exists."""
    all_keys = [key for series_keys in keys_of.values() for key in series_keys]
    keys = existing_keys(target, table, all_keys) if all_keys else set()
    return {series for series, series_keys in keys_of.items() if not keys.isdisjoint(series_keys)}


def _rejected(series: Series, grown: str, option: str, most: int) -> RejectedError:
    return RejectedError(
        Reason.SERIES_LIMIT,
        f"new series of metric {series.metric[:200]!r}, beyond {option} {most}: {grown}: stop what "
        "creates new tag values, or raise the limit and replay",
    )
