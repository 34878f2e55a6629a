"""Annotations and histograms of a question, which OpenTSDB stores in the rows of points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from timebeam.schema.core.annotations import Annotation
from timebeam.schema.core.histograms import Histogram, NotASimpleHistogramError, decode
from timebeam.schema.core.points import Series
from timebeam.schema.core.rows import Row
from timebeam.schema.core.selection import ColumnRange, Finding
from timebeam.schema.query.answer import by_start
from timebeam.schema.query.downsample import first_whole_ms
from timebeam.schema.query.question import Question
from timebeam.schema.stores.opentsdb import select
from timebeam.schema.stores.opentsdb.columns import annotation_cells as cells
from timebeam.schema.stores.opentsdb.columns.annotation_cells import offset_ms
from timebeam.schema.stores.opentsdb.columns.decode_row import is_histogram
from timebeam.schema.stores.opentsdb.encode import FAMILY
from timebeam.schema.stores.opentsdb.keys import parse_key
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.query.budget import Meter, metered

if TYPE_CHECKING:
    from timebeam.schema.stores import OpenTsdb


def series_annotations(
    target: Target, layout: OpenTsdb, question: Question
) -> tuple[dict[Series, list[Annotation]], list[str]]:
    """(the annotations that start in the range of a question, by series; a line for each unreadable one).

    A series that has annotations only elsewhere in the hours of the range has an empty list.

    Raises:
      UnknownNameError: a name is in no table.
      StoppedError: by the meter of the target.
    """
    corruption: list[str] = []
    by_series: dict[Series, list[Annotation]] = {}
    within, reader = question.range, metered(target)
    selection = question.selection(within.first_ms, within.until_ms)
    for selected in select.select(layout, layout.data_table, selection, reader, cells.COLUMNS):
        if isinstance(selected, Finding):
            corruption.append(f"row {selected.key.hex()}: {selected.text}")
        elif question.passes(selected.series) and (notes := _notes(layout, selected.row, corruption)):
            shown = [note for note in notes if question.start_ms <= note.start_ms <= question.end_ms]
            by_series.setdefault(selected.series, []).extend(shown)
    return by_series, corruption


def global_annotations(
    target: Target, layout: OpenTsdb, start_ms: int, end_ms: int
) -> tuple[list[Annotation] | None, list[str]]:
    """(the global annotations that start and end in a range, sorted; a line for each unreadable one).

    None if a TSD shows no list: meta/Annotation.getGlobalAnnotations compares with whole seconds, whatever
    the unit of the annotation, and of those that it finds only what starts in the range is shown.
    """
    corruption: list[str] = []
    reader = metered(target)
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
    corruption += [f"row {row.key.hex()}: {one.corruption}" for one in stored if one.note is None]
    return [one.note for one in stored if one.note is not None]


_HISTOGRAM_COLUMNS = ColumnRange(FAMILY, b"\x06", b"\x07")
"""A range of columns with all histograms, and the points of seconds 96 to 111."""

_BUCKET_POINTS = 4  # memory of a bucket, about 150 bytes, in points


def find_histograms(
    target: Target, layout: OpenTsdb, question: Question
) -> tuple[dict[Series, dict[int, Histogram]], list[str]]:
    """(histograms of a question by series and time in ms, a line for each unreadable one).

    The meter counts a histogram and each of its buckets as `_BUCKET_POINTS`.

    Raises:
      UnknownNameError: a name is in no table.
      StoppedError: by the meter of the target.
    """
    corruption: list[str] = []
    by_series: dict[Series, dict[int, Histogram]] = {}
    meter, (first_ms, until_ms) = Meter.of(target), _span_ms(question)
    selection, reader = question.selection(first_ms, until_ms), metered(target)
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
