"""Evaluates a question over the tables of a layout; annotations and histograms, beside points; TSUIDs."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from timebeam.schema.core.annotations import Annotation
from timebeam.schema.core.contract import ReadableStore
from timebeam.schema.core.histograms import Histogram, NotASimpleHistogramError, decode
from timebeam.schema.core.points import Series
from timebeam.schema.core.rows import Row
from timebeam.schema.core.selection import ColumnRange, Finding, Reader
from timebeam.schema.query.aggregate import never_stops
from timebeam.schema.query.answer import (
    QuerySeries,
    Result,
    annotated,
    answer,
    answer_histograms,
    by_start,
    check_percentiles,
)
from timebeam.schema.query.downsample import first_whole_ms
from timebeam.schema.query.question import Question
from timebeam.schema.rollup.rollup_config import PreAggregate, RollupConfig
from timebeam.schema.stores import find_opentsdb
from timebeam.schema.stores.opentsdb import select
from timebeam.schema.stores.opentsdb.columns import annotation_cells as cells
from timebeam.schema.stores.opentsdb.columns.annotation_cells import offset_ms
from timebeam.schema.stores.opentsdb.columns.decode_row import is_histogram
from timebeam.schema.stores.opentsdb.encode import FAMILY
from timebeam.schema.stores.opentsdb.key_ranges import key_of_tsuid
from timebeam.schema.stores.opentsdb.keys import parse_key, tsuid_pairs
from timebeam.schema.stores.opentsdb.uids import uid_table
from timebeam.schema.stores.opentsdb.uids.uid_directory import UidDirectory
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.query.budget import Meter, metered
from timebeam.transforms.query.read_rollups import find_points, find_rolled_up
from timebeam.transforms.read.table_reader import TableReader

if TYPE_CHECKING:
    from timebeam.schema.stores import OpenTsdb


def tsuids_of(layout: OpenTsdb, series: Collection[Series], reader: Reader) -> dict[Series, bytes]:
    """The TSUIDs of series; without series that have a name without a UID."""
    names = {series_: layout.names(series_) for series_ in series}
    uids = uid_table.look_up(layout.uid_table, {name for group in names.values() for name in group}, reader)
    tsuids = {}
    for member, group in names.items():
        if all(name in uids for name in group):
            tags = zip(group[1::2], group[2::2], strict=True)
            pairs = sorted(uids[key] + uids[value] for key, value in tags)
            tsuids[member] = uids[group[0]] + b"".join(pairs)
    return tsuids


def series_of_tsuids(layout: OpenTsdb, texts: Iterable[str], reader: Reader) -> dict[bytes, Series]:
    """The series of TSUIDs in hex.

    Raises:
      ValueError: one is no TSUID, or has a UID without a name.
    """
    pairs_of = {tsuid: tsuid_pairs(layout.options, tsuid) for tsuid in map(_tsuid, texts)}
    names = UidDirectory(layout.options, layout.uid_table, reader).resolve(
        pair for pairs in pairs_of.values() for pair in pairs
    )
    series: dict[bytes, Series] = {}
    for tsuid, pairs in pairs_of.items():
        for kind, uid in pairs:
            if (kind, uid) not in names:
                raise ValueError(f"No such unique ID for '{kind}': {uid.hex().upper()}")
        texts_of = [names[pair] for pair in pairs]
        series[tsuid] = Series.of(texts_of[0], dict(zip(texts_of[1::2], texts_of[2::2], strict=True)))
    return series


def _tsuid(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise ValueError(f"TSUID {text} is not hexadecimal") from error


def question_of_tsuids(
    question: Question, layout: ReadableStore, texts: Sequence[str], reader: Reader
) -> Question:
    """The question of the series of TSUIDs alone, in place of its metric, tags and filters.

    Raises:
      ValueError: the layout has no TSUIDs, one is wrong, or they are of several metrics.
    """
    with_uids = find_opentsdb(layout)
    if with_uids is None:
        raise ValueError(f"Layout {layout.name} has no TSUIDs; query by metric and tags")
    by_tsuid = series_of_tsuids(with_uids, texts, reader)
    series = frozenset(by_tsuid.values())
    metrics = sorted({member.metric for member in series})
    if len(metrics) > 1:
        raise ValueError(f"One or more TSUIDs did not share the same metric [{metrics[0]}] [{metrics[1]}]")
    return dataclasses.replace(
        question,
        metric=metrics[0],
        tags={},
        group_by=(),
        filters=(),
        series=series,
        tsuids=frozenset(by_tsuid),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Evaluated:
    """The answer to a question.

    Attributes:
      series: those that passed and have points near the range.
      tsuids: of the series of the answer; empty in a layout without UIDs.
      damage: what could not be read, one line each.
      explained: a line for each period: its table, and why.
      stats: what the answer took, by the names of a TSD's statistics; times in ms.
      interval: of the rollups that were read; empty for points alone.
    """

    results: Sequence[Result]
    series: Sequence[Series]
    tsuids: Mapping[Series, bytes]
    damage: Sequence[str]
    explained: Sequence[str]
    stats: Mapping[str, float]
    interval: str = ""


def evaluate(
    target: Target,
    layout: ReadableStore,
    question: Question,
    rollups: tuple[OpenTsdb, RollupConfig] | None,
    now_ms: int,
    meter: Meter | None = None,
    *,
    with_annotations: bool = False,
) -> Evaluated:
    """The answer to a question, its series in the order of their TSUIDs.

    Args:
      rollups: the rollup tables that may serve; None for points alone.
      meter: counts what is read; what it raises goes through.
      with_annotations: whether results have those of their series.

    Raises:
      UnknownNameError: a name is in no table.
      ValueError: too large a fill.
    """
    stats = _Stats(meter)
    if rollups is None:
        read = find_points(target, layout, question, meter=meter)
    else:
        read = find_rolled_up(target, *rollups, question, now_ms, meter)
    series, corruption = [item.series for item in read.series], read.damage
    tsuids = {item.series: item.tsuid for item in read.series if item.tsuid}
    unknown = [item.series for item in read.series if not item.tsuid]
    if unknown:
        tsuids |= _tsuids(target, layout, unknown, meter)
    stats.add_scan()
    ordered = _with_order(layout, read.series, tsuids)
    if meter is not None:
        meter.add_points(question.filled_count * len(ordered))
    results = answer(question, ordered, never_stops if meter is None else meter.check)
    stats.add_results(results)
    if with_annotations and read.may_have_annotations:
        results, corruption = _annotated(target, layout, question, results, corruption, meter, read.group)
    return Evaluated(results, series, tsuids, corruption, read.explained, stats.values, read.interval)


def evaluate_histograms(
    target: Target,
    layout: OpenTsdb,
    question: Question,
    percentiles: Sequence[float],
    *,
    has_buckets: bool,
    meter: Meter | None = None,
    with_annotations: bool = False,
) -> Evaluated:
    """The answer to a question out of histograms; see `answer_histograms`.

    Raises:
      UnknownNameError: a name is in no table.
      ValueError: a percentile is out of its range.
    """
    check_percentiles(percentiles)
    stats = _Stats(meter)
    histograms, corruption = find_histograms(target, layout, question, meter)
    series = [*histograms]
    tsuids = _tsuids(target, layout, series, meter)
    stats.add_scan()
    results = answer_histograms(
        question,
        histograms,
        percentiles,
        has_buckets=has_buckets,
        add_points=(lambda _: None) if meter is None else meter.add_points,
    )
    stats.add_results(results)
    if with_annotations:
        results, corruption = _annotated(target, layout, question, results, corruption, meter)
    return Evaluated(results, series, tsuids, corruption, [], stats.values)


def _with_order(
    layout: ReadableStore, found: Sequence[QuerySeries], tsuids: Mapping[Series, bytes]
) -> Sequence[QuerySeries]:
    """The series with their TSUIDs and salts, which their order depends on."""
    with_uids = find_opentsdb(layout)
    if with_uids is None:
        return found
    ordered = []
    for item in found:
        tsuid = tsuids.get(item.series, b"")
        salt = key_of_tsuid(with_uids.options, tsuid).head[: with_uids.options.salt_width] if tsuid else b""
        ordered.append(dataclasses.replace(item, tsuid=tsuid, salt=salt))
    return ordered


class _Stats:
    """Measures the steps of an evaluation."""

    def __init__(self, meter: Meter | None) -> None:
        self.values: dict[str, float] = {}
        self._meter, self._begun_s = meter, time.perf_counter()
        self._read = meter.read if meter is not None else (0, 0, 0)

    def add_scan(self) -> None:
        """The series are read."""
        if self._meter is not None:
            names = ("rowsFromStorage", "bytesFromStorage", "dpsPostFilter")
            for name, before, after in zip(names, self._read, self._meter.read, strict=True):
                self.values[name] = after - before
        self.values["queryScanTime"] = self._lap_ms()

    def add_results(self, results: Sequence[Result]) -> None:
        """The results are computed."""
        self.values["aggregationTime"] = self._lap_ms()
        self.values["emittedDPs"] = sum(len(result.times_ms) for result in results)

    def _lap_ms(self) -> float:
        before_s, self._begun_s = self._begun_s, time.perf_counter()
        return (self._begun_s - before_s) * 1000


def _tsuids(
    target: Target, layout: ReadableStore | OpenTsdb, series: Sequence[Series], meter: Meter | None
) -> Mapping[Series, bytes]:
    with_uids = find_opentsdb(layout)
    return {} if with_uids is None else tsuids_of(with_uids, series, metered(TableReader(target), meter))


def _annotated(
    target: Target,
    layout: ReadableStore | OpenTsdb,
    question: Question,
    results: list[Result],
    corruption: Sequence[str],
    meter: Meter | None,
    group: PreAggregate | None = None,
) -> tuple[list[Result], list[str]]:
    """(the results with the annotations of their series, a line for each problem).

    Args:
      group: the pre-aggregate whose groups the results have in place of series; None if they have series.
    """
    annotating = find_opentsdb(layout)
    if annotating is None:
        return results, [*corruption]
    notes, unread = series_annotations(target, annotating, question, meter)
    if group is not None:
        of_groups: dict[Series, list[Annotation]] = {}
        for series, of_series in notes.items():
            if (key := group.group(series)) is not None:
                of_groups.setdefault(key, []).extend(of_series)
        notes = of_groups
    return annotated(results, notes), [*corruption, *unread]


if TYPE_CHECKING:
    from timebeam.schema.stores import OpenTsdb


def series_annotations(
    target: Target, layout: OpenTsdb, question: Question, meter: Meter | None = None
) -> tuple[dict[Series, list[Annotation]], list[str]]:
    """(the annotations that start in the range of a question, by series; a line for each unreadable one).

    A series that has annotations only elsewhere in the hours of the range has an empty list.

    Args:
      meter: counts what is read; what it raises goes through.

    Raises:
      UnknownNameError: a name is in no table.
    """
    corruption: list[str] = []
    by_series: dict[Series, list[Annotation]] = {}
    within, reader = question.range, metered(TableReader(target), meter)
    selection = question.selection(within.first_ms, within.until_ms)
    for selected in select.select(layout, layout.data_table, selection, reader, cells.COLUMNS):
        if isinstance(selected, Finding):
            corruption.append(f"row {selected.key.hex()}: {selected.text}")
        elif question.passes(selected.series) and (notes := _notes(layout, selected.row, corruption)):
            shown = [note for note in notes if question.start_ms <= note.start_ms <= question.end_ms]
            by_series.setdefault(selected.series, []).extend(shown)
    return by_series, corruption


def global_annotations(
    target: Target, layout: OpenTsdb, start_ms: int, end_ms: int, meter: Meter | None = None
) -> tuple[list[Annotation] | None, list[str]]:
    """(the global annotations that start and end in a range, sorted; a line for each unreadable one).

    None if a TSD shows no list: meta/Annotation.getGlobalAnnotations compares with whole seconds, whatever
    the unit of the annotation, and of those that it finds only what starts in the range is shown.
    """
    corruption: list[str] = []
    reader = metered(TableReader(target), meter)
    notes = [
        note
        for row in reader.scan(cells.global_scan(layout.options, layout.data_table, start_ms, end_ms))
        if cells.is_global(layout.options, row.key)
        for note in _notes(layout, row, corruption)
        if note.start >= start_ms // 1000 and note.end <= end_ms // 1000
    ]
    shown = by_start(note for note in notes if start_ms <= note.start_ms <= end_ms)
    return shown if notes else None, corruption


def _notes(layout: OpenTsdb, row: Row, corruption: list[str]) -> Sequence[Annotation]:
    stored = list(cells.read_annotations(layout.options, row))
    corruption += [f"row {row.key.hex()}: {one.damage}" for one in stored if one.note is None]
    return [one.note for one in stored if one.note is not None]


_HISTOGRAM_COLUMNS = ColumnRange(FAMILY, b"\x06", b"\x07")
"""A range of columns with all histograms, and the points of seconds 96 to 111."""

_BUCKET_POINTS = 4  # memory of a bucket, about 150 bytes, in points


def find_histograms(
    target: Target, layout: OpenTsdb, question: Question, meter: Meter | None = None
) -> tuple[dict[Series, dict[int, Histogram]], list[str]]:
    """(histograms of a question by series and time in ms, a line for each unreadable one).

    Args:
      meter: counts what is read, a histogram and each of its buckets as `_BUCKET_POINTS`; what it raises
        goes through.

    Raises:
      UnknownNameError: a name is in no table.
    """
    corruption: list[str] = []
    by_series: dict[Series, dict[int, Histogram]] = {}
    first_ms, until_ms = _span_ms(question)
    selection, reader = question.selection(first_ms, until_ms), metered(TableReader(target), meter)
    for selected in select.select(layout, layout.data_table, selection, reader, _HISTOGRAM_COLUMNS):
        if isinstance(selected, Finding):
            corruption.append(f"row {selected.key.hex()}: {selected.text}")
            continue
        if not question.passes(selected.series):
            continue
        base_ms = parse_key(layout.options, selected.row.key).base_s * 1000
        for cell in sorted(selected.row.cells, key=lambda cell: (cell.timestamp_ms, cell.qualifier)):
            if not is_histogram(cell.qualifier):
                continue
            time_ms = base_ms + offset_ms(cell.qualifier)
            if not first_ms <= time_ms < until_ms:
                continue
            try:
                histogram = decode(cell.value)
                if meter is not None:
                    meter.add_points(_BUCKET_POINTS * (1 + len(histogram.buckets)))
                by_series.setdefault(selected.series, {})[time_ms] = histogram
            except NotASimpleHistogramError as error:
                codec = cell.value[:1].hex() or "none"
                text = f"histogram {cell.qualifier.hex()} of codec {codec} is not a SimpleHistogram: {error}"
                corruption.append(f"row {selected.row.key.hex()}: {text}")
    return {series: times for series, times in by_series.items() if times}, corruption


def _span_ms(question: Question) -> tuple[int, int]:
    """(first time in ms, where the times end) of the histograms that the answer is made of."""
    how, within = question.downsampling, question.range
    if how is None:
        return question.start_ms, question.end_ms + 1
    if how.interval_ms is None:
        return within.start_ms, within.end_ms
    return first_whole_ms(how, within), within.until_ms
