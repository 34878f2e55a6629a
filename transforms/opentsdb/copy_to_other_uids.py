"""Copies rows of rollups, metadata and trees between OpenTSDB tables of other widths, salts and prefixes.

The UIDs in row keys, columns and JSON are translated by their names; timestamps and all other bytes are kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import PBegin, PCollection

from timebeam.schema.bits.lru_cache import batched
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.point_fragments import Name
from timebeam.schema.core.points import Series, SeriesKey
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.core.rows import WHOLE_TABLE, Cell, KeyRange, Row, TableSpec
from timebeam.schema.core.selection import Scan
from timebeam.schema.rollup.rollup_config import RollupConfig
from timebeam.schema.stores.opentsdb.encode import FAMILY
from timebeam.schema.stores.opentsdb.keys import SPAN_S, is_of_series, row_key, tsuid_of_key
from timebeam.schema.stores.opentsdb.meta_documents import DOCUMENT, KINDS, TsMeta, meta_table
from timebeam.schema.stores.opentsdb.trees.tree_cells import (
    COLLISION,
    LEAF,
    NOT_MATCHED,
    hex_text,
    leaf_json,
    leaf_tsuid,
    read_leaf,
)
from timebeam.schema.stores.opentsdb.uids.uid_table import UidDirectory, why_nameless
from timebeam.transforms.bigtable.read_ranges import ranges_between, split_keys
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.dead_letters.letter import rejected_row
from timebeam.transforms.ingest.encode_group_pack import SharedSeriesKeys
from timebeam.transforms.ingest.row_mutations import write_batch
from timebeam.transforms.ingest.series_keys import UidOptions
from timebeam.transforms.opentsdb.assign_uids import UidPolicy, UidTable
from timebeam.transforms.opentsdb.trees.tree_table import tree_table
from timebeam.transforms.read.table_reader import TableReader, read_rows, scan_rows

if TYPE_CHECKING:
    from timebeam.schema.stores import OpenTsdb

_ROWS_AT_ONCE = 500
_NO_NEW_UIDS = UidPolicy(auto_create_tagks=False, auto_create_tagvs=False)


class TableContent(enum.Enum):
    """What the rows of a table are."""

    ROLLUPS = enum.auto()
    SERIES = enum.auto()
    NAMES = enum.auto()
    TREES = enum.auto()


class TablePair(NamedTuple):
    """A table, and the table that its rows are copied to.

    Attributes:
      span_s: the seconds of a row of rollups.
    """

    content: TableContent
    source: TableSpec
    sink: TableSpec
    span_s: int = 0


def table_pairs(
    source: OpenTsdb, sink: OpenTsdb, contents: Collection[str], config: RollupConfig | None
) -> list[TablePair]:
    """The tables of some contents: `meta`, `trees`, and those of a configuration of rollups."""
    tables = zip(*(_tables_of(layout, contents, config) for layout in (source, sink)), strict=True)
    return [TablePair(content, spec, other, span_s) for (content, spec, span_s), (_, other, _) in tables]


def _tables_of(
    layout: OpenTsdb, contents: Collection[str], config: RollupConfig | None
) -> Iterator[tuple[TableContent, TableSpec, int]]:
    """(content, table, seconds of a row of rollups) of the tables of a layout."""
    prefix = layout.options.table_prefix
    if config is not None:
        for interval in config.intervals:
            span_s = max(SPAN_S, interval.row_span.nominal_s)
            for name in config.outputs(interval):
                yield TableContent.ROLLUPS, TableSpec(prefix + name, {FAMILY: 1}, holds_points=True), span_s
    if "meta" in contents:
        yield TableContent.SERIES, meta_table(prefix), 0
        yield TableContent.NAMES, layout.tables()[1], 0
    if "trees" in contents:
        yield TableContent.TREES, tree_table(prefix), 0


@dataclasses.dataclass(frozen=True, slots=True)
class TranslateJob:
    """The rows to copy.

    Attributes:
      uids: which names get UIDs in the sink.
      start_ms, end_ms: first and last time, in ms, both inclusive: of rows of rollups, those that overlap it.
    """

    target: Target
    source: OpenTsdb
    sink: OpenTsdb
    uids: UidOptions
    tables: Sequence[TablePair]
    start_ms: int
    end_ms: int
    dry_run: bool = False


class CopyTranslated(beam.PTransform):  # type: ignore[type-arg]
    """Copies the rows of some tables: a pipeline in, `Rejected` rows out."""

    def __init__(self, job: TranslateJob) -> None:
        super().__init__()
        self._job = job

    def expand(self, root: PBegin) -> PCollection[Rejected]:
        return (
            root
            | "Tables" >> beam.Create(self._job.tables, reshuffle=False)
            | "Ranges" >> beam.FlatMap(_table_ranges, self._job.target)
            | "SpreadRanges" >> beam.Reshuffle()
            | "Translate" >> beam.ParDo(_TranslateFn(self._job))
        )


def _table_ranges(tables: TablePair, target: Target) -> Iterator[tuple[TablePair, KeyRange]]:
    """The tables with each key range of the source."""
    for keys in ranges_between(split_keys(target, tables.source.name)):
        yield tables, keys


class _TranslateFn(beam.DoFn):
    """(`TablePair`, key range) in; rejected rows out, after all others are copied."""

    def __init__(self, job: TranslateJob) -> None:
        self._job = job
        self._translator = Translator(job)

    def setup(self) -> None:
        self._translator.open()

    def process(self, element: tuple[TablePair, KeyRange]) -> Iterator[Rejected]:
        tables, keys = element
        for pairs in self._translator.translated(tables, keys):
            rows = []
            for row, translated in pairs:
                if isinstance(translated, RejectedError):
                    yield rejected_row(row, translated.reason, translated.message, Stage.ASSIGN)
                elif translated.cells:
                    rows.append(translated)
            if rows and not self._job.dry_run:
                yield from write_batch(self._job.target, tables.sink.name, rows)


class Translator:
    """Rows as they are in the sink. It can be pickled until it is opened."""

    def __init__(self, job: TranslateJob) -> None:
        self._job = job
        self._keys = SharedSeriesKeys(job.target, job.sink, job.uids, dry_run=job.dry_run)

    def open(self) -> None:
        """Opens the UID tables."""
        job = self._job
        self._keys.open()
        self._names = UidDirectory(job.source.options, TableReader(job.target))
        self._uids = UidTable(job.target, job.sink, _NO_NEW_UIDS if job.dry_run else job.uids.policy)

    def translated(
        self, tables: TablePair, keys: KeyRange = WHOLE_TABLE
    ) -> Iterator[list[tuple[Row, Row | RejectedError]]]:
        """(row, the row in the sink or why there is none) of the rows of a key range, in lists."""
        rows = scan_rows(self._job.target, Scan(tables.source.name, (keys,)))
        translate = self._translate[tables.content]
        for batch in batched(rows, _ROWS_AT_ONCE):
            yield list(translate(self, tables, batch))

    def _rollups(self, tables: TablePair, rows: Sequence[Row]) -> Iterator[tuple[Row, Row | RejectedError]]:
        """Rows with the keys of a data table."""
        options, job = self._job.source.options, self._job
        parsed: list[tuple[Row, bytes, int]] = []
        for row in rows:
            if not is_of_series(options, row.key):
                continue
            try:
                tsuid, base_s = tsuid_of_key(options, row.key)
            except ValueError as error:
                yield row, RejectedError(Reason.CORRUPT_FILE, str(error))
                continue
            if base_s * 1000 <= job.end_ms and (base_s + tables.span_s) * 1000 > job.start_ms:
                parsed.append((row, tsuid, base_s))
        series_keys = self._series_keys([tsuid for _, tsuid, _ in parsed])
        for row, tsuid, base_s in parsed:
            key = series_keys[tsuid]
            yield (
                row,
                key
                if isinstance(key, RejectedError)
                else Row(tables.sink.name, row_key(key, base_s), row.cells),
            )

    def _series(self, tables: TablePair, rows: Sequence[Row]) -> Iterator[tuple[Row, Row | RejectedError]]:
        tsuids = self._tsuids([row.key for row in rows])
        for row in rows:
            tsuid = tsuids[row.key]
            if isinstance(tsuid, RejectedError):
                yield row, tsuid
                continue
            try:
                cells = [_document(row.key, cell, tsuid) for cell in row.cells]
            except ValueError as error:
                yield row, RejectedError(Reason.CORRUPT_FILE, str(error))
            else:
                yield row, Row(tables.sink.name, tsuid, cells)

    def _metadata(self, tables: TablePair, rows: Sequence[Row]) -> Iterator[tuple[Row, Row | RejectedError]]:
        cells = [
            (row.key, cell, KINDS[cell.qualifier])
            for row in rows
            for cell in row.cells
            if cell.qualifier in KINDS
        ]
        name_of = self._names.resolve({(kind, uid) for uid, _, kind in cells})
        form = self._job.sink.options.names
        names = {pair: Name(pair[0], form.stored(text)) for pair, text in name_of.items()}
        uids, _ = self._uids.resolve(names.values()) if names else ({}, 0)
        for uid, cell, kind in cells:
            row = Row(tables.source.name, uid, (cell,))
            name = names.get((kind, uid))
            if name is None:
                yield row, RejectedError(Reason.CORRUPT_FILE, why_nameless((kind, uid)))
            elif isinstance(sink_uid := uids[name], RejectedError):
                yield row, sink_uid
            else:
                yield row, Row(tables.sink.name, sink_uid, (cell,))

    def _trees(self, tables: TablePair, rows: Sequence[Row]) -> Iterator[tuple[Row, Row | RejectedError]]:
        """Rows of trees: the TSUIDs of leaves, collisions, and series that no rule matches."""
        tsuids = self._tsuids([tsuid for row in rows for cell in row.cells for tsuid in _tsuids_of(cell)])
        for row in rows:
            lost = [
                error
                for cell in row.cells
                for tsuid in _tsuids_of(cell)
                if isinstance(error := tsuids[tsuid], RejectedError)
            ]
            known = {tsuid: new for tsuid, new in tsuids.items() if isinstance(new, bytes)}
            yield (
                row,
                lost[0]
                if lost
                else Row(tables.sink.name, row.key, [_tree_cell(cell, known) for cell in row.cells]),
            )

    def _tsuids(self, tsuids: Sequence[bytes]) -> Mapping[bytes, bytes | RejectedError]:
        """The TSUID of each series in the sink."""
        salt_width = self._job.sink.options.salt_width
        return {
            tsuid: key if isinstance(key, RejectedError) else key.head[salt_width:] + key.tail
            for tsuid, key in self._series_keys(tsuids).items()
        }

    def _series_keys(self, tsuids: Sequence[bytes]) -> Mapping[bytes, SeriesKey | RejectedError]:
        keys: dict[bytes, SeriesKey | RejectedError] = {}
        named: dict[bytes, Series] = {}
        for tsuid, series in self._names.series(tsuids).items():
            if isinstance(series, str):
                keys[tsuid] = RejectedError(Reason.CORRUPT_FILE, series)
            else:
                named[tsuid] = series
        if named:
            keys |= zip(named, self._keys.series_keys(list(named.values())), strict=True)
        return keys

    _translate: Mapping[
        TableContent,
        Callable[[Translator, TablePair, Sequence[Row]], Iterator[tuple[Row, Row | RejectedError]]],
    ] = {
        TableContent.ROLLUPS: _rollups,
        TableContent.SERIES: _series,
        TableContent.NAMES: _metadata,
        TableContent.TREES: _trees,
    }


def _document(key: bytes, cell: Cell, tsuid: bytes) -> Cell:
    """A cell of the meta table, with the TSUID of the sink; raises ValueError if it is corrupt."""
    if cell.qualifier != DOCUMENT:
        return cell
    return cell._replace(
        value=dataclasses.replace(TsMeta.from_bytes(key, cell.value), tsuid=tsuid).to_bytes()
    )


def _tsuids_of(cell: Cell) -> Iterator[bytes]:
    """The TSUIDs in a cell of the table of trees; a corrupt leaf is copied as it is."""
    for prefix in (COLLISION, NOT_MATCHED):
        if cell.qualifier.startswith(prefix):
            yield cell.qualifier.removeprefix(prefix)
    tsuid = leaf_tsuid(cell)
    if cell.qualifier.startswith(COLLISION):
        with contextlib.suppress(ValueError):
            tsuid = bytes.fromhex(cell.value.decode("ascii"))
    if tsuid:
        yield tsuid


def _tree_cell(cell: Cell, tsuids: Mapping[bytes, bytes]) -> Cell:
    """A cell of the table of trees, with the TSUIDs of the sink."""
    old = list(_tsuids_of(cell))
    if not old:
        return cell
    if cell.qualifier.startswith(LEAF):
        leaf = read_leaf(cell.value)
        return cell._replace(value=leaf_json(leaf._replace(tsuid=hex_text(tsuids[old[0]]))))
    prefix = COLLISION if cell.qualifier.startswith(COLLISION) else NOT_MATCHED
    value = hex_text(tsuids[old[1]]).encode() if len(old) > 1 else cell.value
    return cell._replace(qualifier=prefix + tsuids[old[0]], value=value)


class ComparedRows(NamedTuple):
    """Result of a comparison: cells of the sink that are those of the source, or newer; and all others.

    Attributes:
      rejected: cells that are missing or different, of rows that are dead letters.
    """

    rows: int
    cells: int
    rejected: int
    missing: int
    different: int


def compare_translated(job: TranslateJob, rejected: Set[tuple[str, bytes]]) -> ComparedRows:
    """Whether all cells of the tables are in the sink, by their values; 500 rows at a time in memory.

    Args:
      rejected: (table, row key) of the rows that are dead letters.
    """
    policy = dataclasses.replace(job.uids, policy=_NO_NEW_UIDS)
    translator = Translator(dataclasses.replace(job, uids=policy))
    translator.open()
    totals = ComparedRows(0, 0, 0, 0, 0)
    for tables in job.tables:
        for pairs in translator.translated(tables):
            expected = [row for _, row in pairs if isinstance(row, Row)]
            stored = (
                read_rows(job.target, tables.sink.name, [row.key for row in expected]) if expected else {}
            )
            for source, row in pairs:
                compared = (
                    ComparedRows(0, 0, 0, len(source.cells), 0)
                    if isinstance(row, RejectedError)
                    else _compare_row(row, stored.get(row.key))
                )
                places = {(tables.source.name, source.key)}
                places |= {(tables.sink.name, row.key)} if isinstance(row, Row) else set()
                if places & rejected:
                    wrong = compared.missing + compared.different
                    compared = compared._replace(rejected=wrong, missing=0, different=0)
                totals = ComparedRows._make(map(operator.add, totals, compared))
    return totals


def _compare_row(expected: Row, stored: Row | None) -> ComparedRows:
    """What a row has of the cells that it should have."""
    existing = {(cell.family, cell.qualifier): cell for cell in (stored.cells if stored else ())}
    cells = missing = different = 0
    for cell in expected.cells:
        copied = existing.get((cell.family, cell.qualifier))
        if copied is None:
            missing += 1
        elif copied.value != cell.value and copied.timestamp_ms <= cell.timestamp_ms:
            different += 1
        else:
            cells += 1
    return ComparedRows(1, cells, 0, missing, different)
