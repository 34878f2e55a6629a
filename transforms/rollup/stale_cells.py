"""Existing cells of rollup tables that a rollup must delete because it does not write them again.

A rollup replaces its period: it deletes numbers of another width, columns under an aggregator's old name,
and intervals whose points are gone. A cell is written at the start of its interval. A later cell of the same
column, by another writer, would hide it, so the column is deleted before it is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from timebeam.schema.bits.arrays import Bools, Int64s
from timebeam.schema.core.point_fragments import Name
from timebeam.schema.core.rows import KeyRange
from timebeam.schema.core.selection import ColumnRange, Reader, Scan
from timebeam.schema.rollup.day_plan import IntervalPlan
from timebeam.schema.rollup.rollup_config import RollupInterval
from timebeam.schema.stores.opentsdb import keys as row_keys
from timebeam.schema.stores.opentsdb.columns import point_elements as el
from timebeam.schema.stores.opentsdb.options import BASE_BYTES
from timebeam.schema.stores.opentsdb.rollup_tables import FAMILY, POINT_BYTES, ROLLUP_BYTES
from timebeam.schema.stores.opentsdb.uids.uid_table import look_up_shown
from timebeam.transforms.bigtable.chunk_columns import EqualCells, MergedRows
from timebeam.transforms.ingest.encode_group_pack import RowKey
from timebeam.transforms.read.chunks import Chunk
from timebeam.transforms.read.table_reader import TableReader, scan_columns
from timebeam.transforms.rollup.rollup_graph import SINGLE, ExistingRange, Fragment
from timebeam.transforms.rollup.rollup_job import OutputTable, RollupJob, chunk_ranges, metric_ranges

PrefixIds = Mapping[bytes, int]
"""Aggregation ids by the prefix of their qualifiers."""

_COLUMNS = ColumnRange(FAMILY, b"", b"")
_UNTAGGED, _OTHER_TAG = 0, 1  # kinds of rows: without the tag, and with a value that is not of this run
_MOST_TAGS = 100_000  # sets of tags that are remembered
_VALUE_BYTES = 8  # of the numbers that are written
_NUMBER, _OTHER_VALUE = -1, -2  # `odd` of cells under usual qualifiers

STANDING, LATER = "standing", "later"
"""In place of an aggregator: the fragment holds the existing qualifiers of a row.

Those of `LATER` have cells later than the starts of their intervals, which would hide the cells that are
written.
"""

_Cells = npt.NDArray[np.void]
"""Existing cells: `place` (see `_places`), `code`, `odd`, `time_ms` and `raw` as in `EncodedRollups`.

`odd` is the number of an old name; `_NUMBER` or `_OTHER_VALUE` under a usual qualifier.
"""
_NO_CELLS: _Cells = np.empty(
    0, [("place", "<i8"), ("code", "<u4"), ("odd", "<i4"), ("time_ms", "<i8"), ("raw", "<u8")]
)


def existing_rows(
    job: RollupJob, name: str, ranges: Sequence[KeyRange]
) -> Iterator[tuple[bytes, list[tuple[bytes, int]]]]:
    """(key, (qualifier, timestamp in ms) of its cells) of the rows of a table in ranges of keys."""
    scan = Scan(job.table(name), ranges, columns=_COLUMNS, keys_only=True)
    for rows in scan_columns(job.target, scan) if ranges else ():
        columns: list[list[tuple[bytes, int]]] = [[] for _ in rows.keys]
        for cells in rows.cells:
            qualifiers = map(bytes, cells.qualifiers)
            for row, *column in zip(cells.rows.tolist(), qualifiers, cells.times_ms.tolist(), strict=True):
                columns[row].append((column[0], column[1]))
        yield from zip(rows.keys, columns, strict=True)


class OwnedIds:
    """The aggregation ids that a run replaces, for each row of a table.

    Rows of groups say by their tag `_aggregate` which aggregator they are of. Those of an aggregator that the
    configuration does not name for the metric are another tool's: nothing in them is replaced.

    Args:
      table: without prefix.
      metric: of the rows, or one of several that have the same aggregators.
      reader: of the UID table.

    Attributes:
      kinds: ids that are replaced in a kind of row, by the prefix of their qualifiers; empty for none.

    Raises:
      BigtableError: the UIDs of the tag and its values cannot be read.
    """

    def __init__(
        self, job: RollupJob, interval: RollupInterval, table: str, metric: str, reader: Reader
    ) -> None:
        config = job.config
        tag_values: dict[str, PrefixIds] = {}
        if table == interval.pre_aggregation_table:
            tag_values = {name.upper(): self._prefixes(job, name) for name in config.aggregators(metric)}
        single: PrefixIds = {}
        if OutputTable(table, of_groups=False) in job.tables(interval, metric):
            single = tag_values[config.raw_agg_tag_value] = self._prefixes(job, SINGLE)
        names = [Name("tagk", config.agg_tag_key), *(Name("tagv", value) for value in tag_values)]
        self._options = options = job.layout.options
        uids = look_up_shown(options, names, reader)
        self._tags_from = options.salt_width + options.uid_width_metric + BASE_BYTES
        self._tag_key = uids.get(names[0])
        holds_groups = interval.table == interval.pre_aggregation_table or config.tag_raw
        self.kinds: list[PrefixIds] = [single, {} if holds_groups else single]
        self._kind_by_tag_value: dict[bytes, int] = {}
        for name in names[1:]:
            if name in uids:
                self._kind_by_tag_value[uids[name]] = len(self.kinds)
                self.kinds.append(tag_values[name.text])
        self._kind_by_tags: dict[bytes, int] = {}

    def kind(self, key: bytes) -> int:
        """The position in `kinds` of the ids that are replaced in a row."""
        tags = key[self._tags_from :]
        kind = self._kind_by_tags.get(tags)
        if kind is None:
            if len(self._kind_by_tags) == _MOST_TAGS:
                self._kind_by_tags.clear()
            kind = self._kind_by_tags[tags] = self._kind_of_tags(key)
        return kind

    def _kind_of_tags(self, key: bytes) -> int:
        try:
            tag_value = dict(row_keys.parse_key(self._options, key).tags).get(self._tag_key or b"")
        except ValueError:  # a corrupt key, which belongs to nobody where groups are stored
            return _OTHER_TAG
        return _UNTAGGED if tag_value is None else self._kind_by_tag_value.get(tag_value, _OTHER_TAG)

    @staticmethod
    def _prefixes(job: RollupJob, aggregator: str) -> PrefixIds:
        """Prefixes of the qualifiers of an aggregator (ids, and aggregators' old names), and their ids."""
        ids = set(job.stored(aggregator))
        named = job.config.aggregation_ids.items()
        old = {f"{name}:".encode(): number for name, number in named if number in ids}
        return {bytes([number]): number for number in ids} | old


def written_id(qualifier: bytes, ids: PrefixIds) -> int | None:
    """The aggregation id of a column of an aggregator that is written; None of others.

    Only names are read in either case: an id is a byte, and 0x41 to 0x5A are ids as all others.
    """
    prefix = qualifier[:-2]
    return ids.get(prefix if len(qualifier) == ROLLUP_BYTES else prefix.lower())


def written_interval(qualifier: bytes, base_s: int, plan: IntervalPlan, ids: PrefixIds) -> int | None:
    """The start, in s, of the interval of a column of an aggregator that is written; None of other columns.

    Args:
      ids: of the row; empty if none is written.
    """
    offset = int.from_bytes(qualifier[-2:], "big") >> 4
    if plan.interval.is_default:
        is_ours, start_s = bool(ids) and len(qualifier) == POINT_BYTES, base_s + offset
    else:
        is_ours = written_id(qualifier, ids) is not None
        start_s = base_s + offset * plan.interval.seconds
    return start_s if is_ours and plan.start_s <= start_s < plan.end_s else None


def existing_fragments(job: RollupJob, existing: ExistingRange) -> Iterator[tuple[RowKey, Fragment]]:
    """(row, fragment) of the qualifiers in a range that are deleted if they are later, or not written."""
    name = existing.table
    (interval,) = [each for each in job.config.intervals if each.interval == existing.interval]
    plan = IntervalPlan(interval, existing.start_s, existing.end_s)
    assert existing.metric is not None
    owned = OwnedIds(job, interval, name, existing.metric, TableReader(job.target))
    for key, columns in existing_rows(job, name, metric_ranges(job, plan, existing.uids)):
        base_s = row_keys.base_s_of(job.layout.options, key)
        ids = owned.kinds[owned.kind(key)]
        packed = {STANDING: b"", LATER: b""}
        for qualifier, time_ms in columns:
            start_s = written_interval(qualifier, base_s, plan, ids)
            if start_s is not None:
                which = LATER if time_ms > start_s * 1000 else STANDING
                packed[which] += len(qualifier).to_bytes(1, "big") + qualifier
        for which, qualifiers in packed.items():
            if qualifiers:
                yield (name, key), (which, qualifiers)


def qualifiers_of(packed_lists: Iterable[bytes]) -> list[bytes]:
    """The qualifiers in the fragments of `existing_fragments`."""
    qualifiers = []
    for packed in packed_lists:
        position = 0
        while position < len(packed):
            end = position + 1 + packed[position]
            qualifiers.append(packed[position + 1 : end])
            position = end
    return qualifiers


class ChunkExisting:
    """The existing cells that a chunk must replace, of its series or their groups, in its hours.

    n cells, ascending by row, aggregation id and interval.

    Args:
      plan: the intervals that the chunk writes alone.
      name: of the table, without prefix.
      reader: of the UID table.
    """

    def __init__(self, job: RollupJob, plan: IntervalPlan, name: str, chunk: Chunk, reader: Reader) -> None:
        self._plan = plan
        self._owned = OwnedIds(job, plan.interval, name, chunk.metrics[0], reader)
        self._wide = POINT_BYTES if plan.interval.is_default else ROLLUP_BYTES
        self._is_replaced = np.zeros((len(self._owned.kinds), 256), np.bool_)  # by kind of row, and id
        for kind, ids in enumerate(self._owned.kinds):
            self._is_replaced[kind, [0] if ids and plan.interval.is_default else list(ids.values())] = True
        self._options = job.layout.options
        self._numbers: dict[bytes, int] = {}
        self._odd: list[bytes] = []  # old names
        ranges = chunk_ranges(job, plan, chunk)
        scan = Scan(job.table(name), ranges, columns=_COLUMNS)
        parts = [_NO_CELLS]
        for rows in scan_columns(job.target, scan) if ranges else ():
            parts += self._cells_of(rows)
        cells = np.concatenate(parts)
        self._cells = cells[np.argsort(cells["place"], kind="stable")]
        self._firsts = np.searchsorted(self._cells["place"], np.arange(len(self._numbers) + 1) << 20)
        self._is_found: Bools = np.zeros(len(cells), np.bool_)

    def __len__(self) -> int:
        return len(self._cells)

    def number(self, key: bytes) -> int:
        """The number of a row; -1 if it has no existing cells."""
        return self._numbers.get(key, -1)

    def replaced(
        self, rows: Int64s, firsts: Int64s, codes: el.Codes, raws: el.Raws, times_ms: Int64s
    ) -> tuple[dict[int, list[bytes]], Bools]:
        """Compares k cells of m rows that are written with the existing ones.

        Args:
          rows: int64[m], the number of each row, or -1.
          firsts, codes, raws, times_ms: as in `EncodedRollups`.

        Returns:
          By row number, the qualifiers that another qualifier of the same interval replaces, or whose cells
          are later than those that are written; and bool[m], the rows whose cells all exist with the same
          values and timestamps.
        """
        is_equal = self._are_equal(rows, firsts, codes, raws, times_ms)
        changed = np.flatnonzero(~is_equal & (rows >= 0))
        if not len(changed):
            return {}, is_equal
        sizes = np.diff(firsts)[changed]
        written = _ranges(firsts[changed], sizes)
        places = _places(np.repeat(rows[changed], sizes), codes[written])
        order = np.argsort(places, kind="stable")
        places, written = places[order], written[order]
        existing = _ranges(
            self._firsts[rows[changed]], self._firsts[rows[changed] + 1] - self._firsts[rows[changed]]
        )
        cells = self._cells[existing]
        matches = np.minimum(np.searchsorted(places, cells["place"]), len(places) - 1)
        is_written = places[matches] == cells["place"]
        self._is_found[existing] |= is_written
        written = written[matches]
        is_kept = is_written & (codes[written] == cells["code"]) & (cells["time_ms"] <= times_ms[written])
        is_kept &= cells["odd"] < 0
        exists = np.zeros(len(codes), np.bool_)
        same = is_kept & (cells["raw"] == raws[written]) & (cells["time_ms"] == times_ms[written])
        exists[written[same & (cells["odd"] == _NUMBER)]] = True
        is_equal[changed] = np.logical_and.reduceat(exists, firsts[:-1])[changed]
        return self._named(existing[is_written & ~is_kept]), is_equal

    def _are_equal(
        self, rows: Int64s, firsts: Int64s, codes: el.Codes, raws: el.Raws, times_ms: Int64s
    ) -> Bools:
        """bool[m]: rows whose existing cells are exactly those that are written, as of most in a second run.

        Both are sorted by aggregation id and interval, so that they are compared without a search.
        """
        sizes, is_equal = np.diff(firsts), rows >= 0
        is_equal[is_equal] = np.diff(self._firsts)[rows[is_equal]] == sizes[is_equal]
        alike = np.flatnonzero(is_equal)
        if len(alike):
            written = _ranges(firsts[alike], sizes[alike])
            existing = _ranges(self._firsts[rows[alike]], sizes[alike])
            cells = self._cells[existing]
            same = (cells["code"] == codes[written]) & (cells["raw"] == raws[written])
            same &= (cells["time_ms"] == times_ms[written]) & (cells["odd"] == _NUMBER)
            same_rows = np.logical_and.reduceat(same, np.cumsum(sizes[alike]) - sizes[alike])
            is_equal[alike] = same_rows
            self._is_found[existing] |= np.repeat(same_rows, sizes[alike])
        return is_equal

    def unwritten(self) -> Iterator[tuple[bytes, list[bytes]]]:
        """(key, qualifiers) of the rows with existing intervals that were not written."""
        keys = list(self._numbers)
        for number, names in self._named(np.flatnonzero(~self._is_found)).items():
            yield keys[number], names

    def _named(self, which: Int64s) -> dict[int, list[bytes]]:
        """The qualifiers of some cells, by row number."""
        qualifiers: dict[int, list[bytes]] = {}
        for place, code, odd in self._cells[["place", "code", "odd"]][which].tolist():
            name = code.to_bytes(self._wide, "big") if odd < 0 else self._odd[odd]
            qualifiers.setdefault(place >> 20, []).append(name)
        return qualifiers

    def _cells_of(self, rows: MergedRows) -> Iterator[_Cells]:
        """The cells of some rows that the chunk must replace."""
        numbers = [self._numbers.setdefault(key, len(self._numbers)) for key in rows.keys]
        bases_s = [row_keys.base_s_of(self._options, key) for key in rows.keys]
        kinds = [self._owned.kind(key) for key in rows.keys]
        of_rows = np.array([numbers, bases_s, kinds], np.int64)
        for cells in rows.cells:
            if cells.qualifiers.shape[1] == self._wide:
                yield self._usual(cells, of_rows[:, cells.rows])
            elif cells.qualifiers.shape[1] > self._wide == ROLLUP_BYTES:
                yield self._named_by_old_names(cells, of_rows[:, cells.rows])

    def _usual(self, cells: EqualCells, of_rows: Int64s) -> _Cells:
        """The cells that the chunk must replace.

        Args:
          of_rows: int64[3, n], number, base time in s and kind of the row of each.
        """
        numbers, bases_s, kinds = of_rows
        table = np.zeros((len(numbers), 4), np.uint8)
        table[:, 4 - self._wide :] = cells.qualifiers
        codes = table.view(">u4").reshape(-1).astype(np.uint32)
        step_s = 1 if self._plan.interval.is_default else self._plan.interval.seconds
        starts_s = bases_s + (codes >> 4 & 0xFFF).astype(np.int64) * step_s
        #                     (1)        (2)
        # (1) Without the four bits of the flags,
        # (2) and without the aggregation id above: the number of the interval in its row.
        is_covered = (starts_s >= self._plan.start_s) & (starts_s < self._plan.end_s)
        is_covered &= self._is_replaced[kinds, codes >> 16]
        existing = np.empty(len(numbers), _NO_CELLS.dtype)
        existing["place"], existing["code"], existing["time_ms"] = (
            _places(numbers, codes),
            codes,
            cells.times_ms,
        )
        existing["odd"], existing["raw"] = _OTHER_VALUE, 0
        if cells.values.shape[1] == _VALUE_BYTES:
            existing["odd"] = _NUMBER
            existing["raw"] = np.ascontiguousarray(cells.values).view(">u8").reshape(-1)
        return existing[is_covered]

    def _named_by_old_names(self, cells: EqualCells, of_rows: Int64s) -> _Cells:
        """The cells under aggregators' old names that the chunk must replace; see `_usual`."""
        existing, names = [], map(bytes, cells.qualifiers)
        for name, (number, base_s, kind) in zip(names, of_rows.T.tolist(), strict=True):
            ids = self._owned.kinds[kind]
            number_of_name = written_id(name, ids)
            if number_of_name is not None and written_interval(name, base_s, self._plan, ids) is not None:
                code = number_of_name << 16 | int.from_bytes(name[-2:], "big")
                existing.append((number << 20 | code >> 4, 0, len(self._odd), -1, 0))
                self._odd.append(name)
        return np.array(existing, _NO_CELLS.dtype)


def _ranges(starts: Int64s, sizes: Int64s) -> Int64s:
    """The numbers from each start on, `sizes` of them."""
    return np.arange(int(sizes.sum())) + np.repeat(starts - np.cumsum(sizes) + sizes, sizes)


def _places(rows: Int64s, codes: el.Codes) -> Int64s:
    """int64[n]: the row number, aggregation id and interval in one number."""
    return rows << 20 | (codes >> 4).astype(np.int64)
    #      (1)          (2)
    # (1) Room for 20 bits:
    # (2) the aggregation id and the 12 bits of the interval, without the flags.
