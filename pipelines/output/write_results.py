"""The results of a query as text for a terminal, as CSV, or as a chart in a file.

`render` is the entry; JSON is that of OpenTSDB's /api/query (docs/spec/opentsdb.md §8.3).
Times in JSON and CSV are since 1970; tables and charts show those of a time zone.
"""

from __future__ import annotations

import csv
import io
import math
import os
import pathlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from timebeam.pipelines.options.reading_options import OUTPUTS
from timebeam.pipelines.output.chart import (
    Chart,
    chart_picture,
    label,
    need_plots,
    note_period,
    note_text,
    time_texts,
)
from timebeam.pipelines.output.html_page import chart_page
from timebeam.pipelines.output.printable import printable
from timebeam.schema.bits.times import UTC
from timebeam.schema.core.annotations import Annotation
from timebeam.schema.query.answer import Result, all_of, to_json

Good = TypeVar("Good")

_TEXTS = ("table", "table-all", "json", "json-ms", "csv", "annotations")
_LIBRARIES = {".png": "matplotlib", ".html": "plotly"}
_FORMULA = ("=", "+", "-", "@")
_SHOWN_SERIES = 20
_SHOWN_POINTS = 20
_CSV_COLUMNS = ("metric", "timestamp_ms", "value")


def check_output(output: str) -> None:
    """Looks whether results can be rendered so, before they are computed.

    Raises:
      ValueError: none of `OUTPUTS`, or a file in a folder that does not exist.
      UsageError: a library that draws charts is missing.
    """
    if output in _TEXTS:
        return
    path = pathlib.Path(output)
    if path.suffix.lower() not in _LIBRARIES:
        raise ValueError(f"unknown output {output!r}; give one of {OUTPUTS}")
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {output!r}: there is no folder {str(path.parent)!r}")
    need_plots(_LIBRARIES[path.suffix.lower()])


def render(
    results: Sequence[Result],
    output: str,
    title: str,
    span_ms: tuple[int, int],
    csv_guard: bool = False,
    zone: str = UTC,
) -> str | None:
    """Text for standard output, or None after writing a file.

    Args:
      output: one of `OUTPUTS`. `table` shortens what is long, `table-all` does not; `json` has
        times in seconds, `json-ms` in milliseconds; `csv` has no annotations, `annotations` only them, as
        JSON lines that can be ingested again. A file is replaced whole or not at all.
      title: heading of a chart.
      span_ms: first and last time that were asked for, in ms, both inclusive: the time axis of a chart.
      csv_guard: see `--csv-guard`.
      zone: time zone of the times in a table or chart.

    Raises:
      ValueError, UsageError: see `check_output`.
    """
    check_output(output)
    if output in ("table", "table-all"):
        return _table(results, everything=output == "table-all", zone=zone)
    if output in ("json", "json-ms"):
        return to_json(results, milliseconds=output == "json-ms") + "\n"
    if output == "csv":
        return _csv(results, csv_guard)
    if output == "annotations":
        return "".join(note.shown() + "\n" for note in all_of(results))
    path = pathlib.Path(output)
    chart = Chart.of(results, all_of(results), title, span_ms, zone)
    _write(path, chart_picture(chart) if path.suffix.lower() == ".png" else chart_page(chart).encode())
    return None


def csv_cell(text: str, guard: bool) -> str:
    """A name as a CSV cell, in one line; with `guard` no spreadsheet takes it for a formula."""
    text = printable(text)
    return "'" + text if guard and text.startswith(_FORMULA) else text


def csv_line(values: Iterable[object]) -> str:
    """A line of CSV, without its newline."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(values)
    return text.getvalue()


def json_array(documents: Iterable[str]) -> Iterator[str]:
    """The lines of an array of JSON documents, one on each."""
    pending = ""
    for document in documents:
        yield pending + "," if pending else "["
        pending = document
    yield pending or "["
    yield "]"


def _value_text(value: int | float, nan_is_null: bool) -> str:
    """A value in tables and CSV."""
    if math.isnan(value):
        return "null" if nan_is_null else "NaN"
    return str(value)


def _table(results: Sequence[Result], everything: bool, zone: str = UTC) -> str:
    """A block of lines for each result: its name, its points, its annotations.

    Args:
      everything: whether nothing is shortened.
      zone: time zone of the times.
    """
    if not results:
        return "no points\n"
    shown = results if everything else results[:_SHOWN_SERIES]
    lines = []
    for result in shown:
        count = len(result.times_ms)
        lines.append(f"{label(result)}  {count} point{'' if count == 1 else 's'}")
        if not count:
            lines += [*_note_lines(result.annotations or (), zone), ""]
            continue
        # One line 'n more' in place of one point would shorten nothing.
        end = count if everything or count <= _SHOWN_POINTS + 1 else _SHOWN_POINTS
        times = time_texts(result.times_ms[:end], zone)
        values = [_value_text(value, result.nan_is_null) for value in result.values[:end].tolist()]
        # The decimal points stand below each other.
        widest = max(len(value.partition(".")[0]) for value in values)
        lines += [
            f"  {time}  {' ' * (widest - len(value.partition('.')[0]))}{value}"
            for time, value in zip(times, values, strict=True)
        ]
        if end < count:
            lines.append(f"  ... {count - end} more points (table-all shows them)")
        lines += [*_note_lines(result.annotations or (), zone), ""]
    if len(shown) < len(results):
        lines.append(f"... {len(results) - len(shown)} more series (table-all shows them)\n")
    if results[0].global_annotations:
        lines += ["global annotations", *_note_lines(results[0].global_annotations, zone), ""]
    return "\n".join(lines)


def _note_lines(notes: Sequence[Annotation], zone: str) -> list[str]:
    """A line for each annotation: when, and what."""
    return [f"  {note_period(note, zone)}  * {note_text(note)}" for note in notes]


class Readable(Generic[Good]):
    """Results that can be read, counted; all others are put aside.

    Attributes:
      unreadable: what is not of the kind.
    """

    def __init__(self, results: Iterable[object], kind: type[Good]) -> None:
        self._results, self._kind = results, kind
        self.count = 0
        self.unreadable: list[Any] = []

    def __iter__(self) -> Iterator[Good]:
        for result in self._results:
            if isinstance(result, self._kind):
                self.count += 1
                yield result
            else:
                self.unreadable.append(result)


def _csv(results: Sequence[Result], guard: bool) -> str:
    """metric, a column for each tag key, timestamp_ms, value. A series without a tag has an empty cell.

    A tag key that is the name of another column gets `tag:` before it.
    """
    keys = sorted({key for result in results for key in result.tags})
    headings = [f"tag:{key}" if key in _CSV_COLUMNS else key for key in keys]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["metric", *(csv_cell(heading, guard) for heading in headings), "timestamp_ms", "value"])
    for result in results:
        tags = (result.tags.get(key, "") for key in keys)
        names = [csv_cell(name, guard) for name in (result.metric, *tags)]
        values = (_value_text(value, result.nan_is_null) for value in result.values.tolist())
        writer.writerows(
            (*names, time, value) for time, value in zip(result.times_ms.tolist(), values, strict=True)
        )
    return text.getvalue()


def _write(path: pathlib.Path, content: bytes) -> None:
    """Replaces the file as a whole; a reader never sees half of it."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
