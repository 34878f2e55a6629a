"""The results of a query as text for a terminal, or as a chart in a file.

`render` is the entry; JSON is that of OpenTSDB's /api/query (section 8.3 of the format notes).
Times are UTC throughout.
"""

from __future__ import annotations

import csv
import datetime
import io
import math
import os
import pathlib
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipelines.chart_page import Mark, chart_page
from schema.annotations.record import Annotation
from schema.points import Int64s
from schema.query.aggregate import Values
from schema.query.annotated import all_of
from schema.query.answer import Result, to_json

OUTPUTS = "table, table-all, json, json-ms, csv, annotations, FILE.png, FILE.html"
"""What `render` accepts, for help texts."""

COLOURS = (
    *("#1f77b4", "#d95f02", "#2a9d3a", "#c2185b", "#7b4fb5", "#8c564b"),
    *("#0aa5b5", "#b8860b", "#e377c2", "#5b6770", "#8aa80f", "#20356b"),
)
_SHOWN_SERIES = 20
_SHOWN_POINTS = 20
_DOTTED_POINTS = 60
_SHOWN_NOTES = 12
_NOTE_LETTERS = 72
_NOTE_GAP = 0.018  # of the width of a chart: what the number of an annotation takes
NOTE_COLOUR, ALL_COLOUR = "#b3123f", "#44505a"
"""Of annotations of series, and of global ones."""


def render(results: Sequence[Result], output: str, title: str) -> str | None:
    """Text for standard output, or None after writing a file.

    Args:
      output: one of `OUTPUTS`. `table` shortens what is long, `table-all` does not; `json` has
        times in seconds, `json-ms` in milliseconds; `csv` has no annotations, `annotations` only them, as
        JSON lines that can be ingested again. A file is replaced whole or not at all.
      title: heading of a chart.

    Raises:
      ValueError: none of `OUTPUTS`, or a file in a folder that does not exist.
    """
    if output in ("table", "table-all"):
        return _table(results, everything=output == "table-all")
    if output in ("json", "json-ms"):
        return to_json(results, milliseconds=output == "json-ms") + "\n"
    if output == "csv":
        return _csv(results)
    if output == "annotations":
        return "".join(note.shown() + "\n" for note in all_of(results))
    path = pathlib.Path(output)
    suffix = path.suffix.lower()
    if suffix not in (".png", ".html"):
        raise ValueError(f"unknown output {output!r}; give one of {OUTPUTS}")
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {output!r}: there is no folder {str(path.parent)!r}")
    notes, results = all_of(results), [result for result in results if len(result.times_ms)]
    marks = [
        Mark(note.start_ms, note.end_ms, _colour(note), note_period(note), note_text(note)) for note in notes
    ]
    if suffix == ".png":
        _write(path, _png(results, notes, title))
    else:
        _write(path, chart_page(results, short_labels(results), COLOURS, title, marks).encode())
    return None


def label(result: Result) -> str:
    """The name of a result: its metric and common tags, and the tag keys it was aggregated over."""
    tags = ",".join(f"{key}={value}" for key, value in result.tags.items())
    over = f" over {','.join(result.aggregate_tags)}" if result.aggregate_tags else ""
    return f"{result.metric}{{{tags}}}{over}"


def short_labels(results: Sequence[Result]) -> list[str]:
    """The names of results in one chart: the tags alone if that is enough to tell them apart."""
    if len({result.metric for result in results}) > 1 or not all(result.tags for result in results):
        return [label(result) for result in results]
    return [", ".join(f"{key}={value}" for key, value in result.tags.items()) for result in results]


def _times(times_ms: Int64s) -> list[str]:
    """ISO 8601, with milliseconds if any of the times has them."""
    moments = times_ms.astype("datetime64[ms]")
    texts = np.datetime_as_string(moments, unit="ms" if np.any(times_ms % 1000) else "s")
    return [text + "Z" for text in texts.tolist()]


def _value(value: int | float, nan_is_null: bool) -> str:
    if math.isnan(value):
        return "null" if nan_is_null else "NaN"
    return str(value)


def _table(results: Sequence[Result], everything: bool) -> str:
    if not results:
        return "no points\n"
    shown = results if everything else results[:_SHOWN_SERIES]
    lines = []
    for result in shown:
        count = len(result.times_ms)
        lines.append(f"{label(result)}  {_count(count, 'point')}")
        if not count:
            lines += [*_note_lines(result.annotations), ""]
            continue
        # One line 'n more' in place of one point would shorten nothing.
        end = count if everything or count <= _SHOWN_POINTS + 1 else _SHOWN_POINTS
        times = _times(result.times_ms[:end])
        values = [_value(value, result.nan_is_null) for value in result.values[:end].tolist()]
        # The decimal points stand below each other.
        widest = max(len(value.partition(".")[0]) for value in values)
        lines += [
            f"  {time}  {' ' * (widest - len(value.partition('.')[0]))}{value}"
            for time, value in zip(times, values, strict=True)
        ]
        if end < count:
            lines.append(f"  ... {count - end} more points (table-all shows them)")
        lines += [*_note_lines(result.annotations), ""]
    if len(shown) < len(results):
        lines.append(f"... {len(results) - len(shown)} more series (table-all shows them)\n")
    if results[0].global_annotations:
        lines += ["global annotations", *_note_lines(results[0].global_annotations), ""]
    return "\n".join(lines)


def _note_lines(notes: Sequence[Annotation]) -> list[str]:
    """A line for each annotation: when, and what."""
    return [f"  {note_period(note)}  * {note_text(note)}" for note in notes]


def note_period(note: Annotation) -> str:
    """From when to when an annotation is; its start alone if it has no end behind it."""
    times = _times(np.array([note.start_ms, note.end_ms], np.int64))
    return times[0] if note.start_ms == note.end_ms else f"{times[0]} to {times[1]}"


def _colour(note: Annotation) -> str:
    return NOTE_COLOUR if note.tsuid else ALL_COLOUR


def note_text(note: Annotation) -> str:
    """What an annotation says, in one line."""
    parts = [" ".join(text.split()) for text in (note.description, note.notes) if text]
    fields = ", ".join(f"{key}={text}" for key, text in note.custom or ())
    return "; ".join(parts) + (f" ({fields})" if fields else "") if parts or fields else "(no text)"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _csv(results: Sequence[Result]) -> str:
    """metric,tags,timestamp_ms,value; the tags as in a put line: key=value pairs with blanks between."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["metric", "tags", "timestamp_ms", "value"])
    for result in results:
        tags = " ".join(f"{key}={value}" for key, value in result.tags.items())
        values = (_value(value, result.nan_is_null) for value in result.values.tolist())
        writer.writerows(
            (result.metric, tags, time, value)
            for time, value in zip(result.times_ms.tolist(), values, strict=True)
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


def _png(results: Sequence[Result], notes: Sequence[Annotation], title: str) -> bytes:
    """A line chart; its legend below if there is more than one series, or an annotation."""
    from matplotlib.figure import Figure

    labels = [_plain(text) for text in short_labels(results)]
    if len(results) < 2:
        labels = []
    elif len(results) > _SHOWN_SERIES:
        labels = [*labels[:_SHOWN_SERIES], f"... {len(results) - _SHOWN_SERIES} more series"]
    labels += [_plain(text) for text in _note_labels(notes)]
    columns, rows = _legend_shape(labels)
    figure = Figure(figsize=(12, 6 + 0.22 * rows), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    for i, result in enumerate(results):
        axes.plot(
            result.times_ms.astype("datetime64[ms]"),
            result.values.astype(np.float64),
            color=COLOURS[i % len(COLOURS)],
            linewidth=1.4,
            marker="o",
            markersize=3,
            markevery=_dotted(result.values),
        )
    axes.set_title(_plain(title), loc="left", fontsize=13, fontweight="bold", pad=12)
    _dress(axes, empty=not results)
    handles = axes.get_lines()[:_SHOWN_SERIES] if len(results) > 1 else []
    if len(results) == 1:
        axes.set_title(_plain(label(results[0])), loc="right", fontsize=9, color="#555555")
    if len(results) > _SHOWN_SERIES:
        handles += axes.plot([], [], linestyle="none")
    if results:
        handles += _mark(axes, notes)
    if handles:
        figure.legend(handles, labels, loc="outside lower left", ncols=columns, frameon=False, fontsize=9)
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()


def _note_labels(notes: Sequence[Annotation]) -> list[str]:
    """What a legend says of annotations, with their numbers."""
    labels = []
    for number, note in enumerate(notes[:_SHOWN_NOTES], 1):
        text = note_text(note)
        text = text if len(text) <= _NOTE_LETTERS else text[: _NOTE_LETTERS - 3] + "..."
        labels.append(f"{number}  {text}")
    if len(notes) > _SHOWN_NOTES:
        labels.append(f"... {len(notes) - _SHOWN_NOTES} more annotations")
    return labels


def _mark(axes: Any, notes: Sequence[Annotation]) -> list[Any]:
    """Draws annotations: a line with a number at the start, a band to the end; handles for a legend."""
    left, right = axes.get_xlim()
    handles: list[Any] = []
    before, level = -math.inf, 0
    for number, note in enumerate(notes, 1):
        start, end = (
            float(axes.convert_xunits(np.datetime64(time, "ms"))) for time in (note.start_ms, note.end_ms)
        )
        colour = _colour(note)
        if end > start:
            axes.axvspan(max(start, left), min(end, right), color=colour, alpha=0.09, linewidth=0)
        line = axes.plot([], [], color=colour, linestyle="--", linewidth=1.2)[0]
        if left <= start <= right:
            axes.axvline(start, color=colour, linestyle="--", linewidth=1.2)
        if number > _SHOWN_NOTES:
            continue
        handles.append(line)
        # Numbers that would cover each other stand one below the other.
        level = level + 1 if max(start, left) - before < _NOTE_GAP * (right - left) else 0
        before = max(start, left)
        axes.annotate(
            str(number),
            (max(start, left), 1),
            xycoords=axes.get_xaxis_transform(),
            xytext=(3, -3 - 12 * level),
            textcoords="offset points",
            va="top",
            color=colour,
            fontsize=9,
            bbox={"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1},
        )
    axes.set_xlim(left, right)
    return handles if len(notes) <= _SHOWN_NOTES else [*handles, *axes.plot([], [], linestyle="none")]


def _dotted(values: Values) -> list[int]:
    """Which points to draw as dots: all of a few, else those that no line reaches."""
    held = np.pad(np.isfinite(values), 1)
    alone = held[1:-1] & ~held[:-2] & ~held[2:]
    return np.flatnonzero(alone | (len(values) <= _DOTTED_POINTS)).tolist()


def _plain(text: str) -> str:
    """Text in which matplotlib finds no formula."""
    return text.replace("$", r"\$")


def _legend_shape(labels: Sequence[str]) -> tuple[int, int]:
    """Columns and rows of a chart's legend."""
    if not labels:
        return 1, 0
    columns = max(1, min(len(labels), 5, 160 // (max(map(len, labels)) + 6)))
    return columns, math.ceil(len(labels) / columns)


def _dress(axes: Any, empty: bool) -> None:
    """Axes with times in UTC, values in engineering notation, and a light grid."""
    from matplotlib import dates, ticker

    if empty:
        axes.text(0.5, 0.5, "no points in this range", ha="center", va="center", transform=axes.transAxes)
        axes.set(xticks=[], yticks=[])
        return
    untyped: Any = dates
    utc = datetime.timezone.utc
    locator = untyped.AutoDateLocator(tz=utc)
    # How ticks at years, months, days, hours, minutes and seconds read; how where that unit begins
    # anew; and what stands once, at the end of the axis.
    usual = ["%Y", "%Y-%m", "%m-%d", "%H:%M", "%H:%M", "%H:%M:%S.%f"]
    anew = ["", "%Y-%m", "%m-%d", "%m-%d", "%H:%M", "%H:%M:%S"]
    once = ["", "", "%Y", "%Y-%m-%d", "%Y-%m-%d", "%Y-%m-%d"]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(untyped.ConciseDateFormatter(locator, utc, usual, once, zero_formats=anew))
    axes.yaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    axes.set_xlabel("time (UTC)", color="#555555")
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.grid(axis="x", color="#f1f1f1", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.01)
    first, last = axes.dataLim.intervalx
    if first == last:
        minute = 1 / (24 * 60)  # matplotlib counts time in days
        axes.set_xlim(first - minute, last + minute)
