"""Charts of query results: what they show, in which words, and as a PNG, drawn by Matplotlib.

Tags that all series of a chart have in common are in its title, once; the time axis is the range that was
asked for, so that an outage at either end is seen.
"""

from __future__ import annotations

import colorsys
import dataclasses
import importlib.util
import io
import math
import zoneinfo
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from timebeam.pipelines.options.parameters import UsageError
from timebeam.pipelines.output.printable import printable
from timebeam.schema.bits.arrays import Int64s, Values, to_floats
from timebeam.schema.bits.times import UTC, local_ms
from timebeam.schema.core.annotations import Annotation
from timebeam.schema.query.answer import Result

_SHOWN_SERIES = 20
_SHOWN_MARKS = 12
_MARK_LETTERS = 72
_MARK_GAP = 0.018  # of the width of a chart: what the number of an annotation takes
_MINUTE_MS = 60_000


def label(result: Result) -> str:
    """The name of a result: its metric and common tags, and the tag keys it was aggregated over."""
    tags = ",".join(f"{key}={value}" for key, value in result.tags.items())
    over = f" over {','.join(result.aggregate_tags)}" if result.aggregate_tags else ""
    return printable(f"{result.metric}{{{tags}}}{over}")


def time_texts(times_ms: Int64s, zone: str) -> list[str]:
    """ISO 8601 in a time zone, with its offset; with milliseconds if any of the times has them."""
    clocks_ms = local_ms(times_ms, zone)
    unit: Literal["ms", "s"] = "ms" if np.any(times_ms % 1000) else "s"
    texts = np.datetime_as_string(clocks_ms.astype("datetime64[ms]"), unit=unit).tolist()
    if zone == UTC:
        return [text + "Z" for text in texts]
    minutes = ((clocks_ms - times_ms) // 60_000).tolist()
    return [
        f"{text}{'-' if offset < 0 else '+'}{abs(offset) // 60:02}:{abs(offset) % 60:02}"
        for text, offset in zip(texts, minutes, strict=True)
    ]


def note_period(note: Annotation, zone: str = UTC) -> str:
    """From when to when an annotation is; its start alone if it has no end behind it."""
    times = time_texts(np.array([note.start_ms, note.end_ms], np.int64), zone)
    return times[0] if note.start_ms == note.end_ms else f"{times[0]} to {times[1]}"


def note_text(note: Annotation) -> str:
    """What an annotation says, in one line."""
    texts = [" ".join(text.split()) for text in (note.description, note.notes) if text]
    fields = ", ".join(f"{key}={text}" for key, text in note.custom or ())
    text = "; ".join(texts) + (f" ({fields})" if fields else "")
    return printable(text) or "(no text)"


_PALETTE = (
    *("#1f77b4", "#d95f02", "#2a9d3a", "#c2185b", "#7b4fb5", "#b0705f"),
    *("#0aa5b5", "#b8860b", "#e377c2", "#7d8a94", "#8aa80f", "#4f6bd6"),
)
"""Seen on white and on black."""

_GOLDEN_RATIO = 0.618034
_DOTTED_POINTS = 60
_SERIES_NOTE, _GLOBAL_NOTE = "#d6294f", "#7b8894"


@dataclasses.dataclass(frozen=True, slots=True)
class ChartMark:
    """An annotation in a chart: first and last time in ms, colour, and period and text in words."""

    start_ms: int
    end_ms: int
    colour: str
    period: str
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Chart:
    """Lines and marks over a range of time.

    Attributes:
      results: those that have points.
      labels, colours: one for each result.
      value_label: what the values are.
      start_ms, end_ms: the time axis.
      zone: time zone of the times that it shows.
    """

    title: str
    results: Sequence[Result]
    labels: Sequence[str]
    colours: Sequence[str]
    value_label: str
    marks: Sequence[ChartMark]
    start_ms: int
    end_ms: int
    zone: str = UTC

    @classmethod
    def of(
        cls,
        results: Sequence[Result],
        notes: Sequence[Annotation],
        title: str,
        span_ms: tuple[int, int],
        zone: str = UTC,
    ) -> Chart:
        """The chart of some results.

        Args:
          notes: the annotations of the results.
          span_ms: first and last time that were asked for, in ms, both inclusive.
        """
        results = [result for result in results if len(result.times_ms)]
        metrics = {result.metric for result in results}
        return cls(
            title + common_names(results),
            results,
            short_labels(results),
            colours(len(results)),
            printable(metrics.pop()) if len(metrics) == 1 else "value",
            [_mark(note, zone) for note in notes],
            *span_ms,
            zone,
        )


def need_plots(library: str) -> None:
    """Raises UsageError if a library of the extra `plots` is not installed."""
    if importlib.util.find_spec(library) is None:
        raise UsageError(f"charts need {library}, which is not installed: pip install -e '.[plots]'")


def common_names(results: Sequence[Result]) -> str:
    """The tags, and the tag keys aggregated over, that all results share; as the end of a title."""
    if not results:
        return ""
    tags = ",".join(f"{key}={value}" for key, value in sorted(_common_tags(results).items()))
    over = {tuple(result.aggregate_tags) for result in results}
    keys = ",".join(over.pop()) if len(over) == 1 else ""
    return printable((f" {{{tags}}}" if tags else "") + (f" over {keys}" if keys else ""))


def short_labels(results: Sequence[Result]) -> list[str]:
    """The names of results in one chart: what tells them apart; in full where that is not enough."""
    common = _common_tags(results)
    one_metric = len({result.metric for result in results}) == 1
    labels = []
    for result in results:
        tags = [f"{key}={value}" for key, value in result.tags.items() if key not in common]
        if one_metric:
            labels.append(", ".join(tags))
        else:
            labels.append(f"{result.metric}{{{','.join(tags)}}}" if tags else result.metric)
    if "" in labels or len(set(labels)) < len(labels):
        return [label(result) for result in results]
    return [printable(text) for text in labels]


def colours(count: int) -> list[str]:
    """So many different colours: of the palette, then hues by the golden ratio."""
    more = []
    for i in range(count - len(_PALETTE)):
        lightness = (0.45, 0.58, 0.52)[i % 3]
        red, green, blue = colorsys.hls_to_rgb(i * _GOLDEN_RATIO % 1, lightness, 0.75 - 0.2 * (i % 2))
        more.append(f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}")
    return [*_PALETTE[:count], *more]


def dotted(values: Values) -> list[int]:
    """Which points to draw as dots: all of a few, else those that no line reaches."""
    drawn = np.pad(np.isfinite(to_floats(values)), 1)
    alone = drawn[1:-1] & ~drawn[:-2] & ~drawn[2:]
    return np.flatnonzero(alone | (len(values) <= _DOTTED_POINTS)).tolist()


def _common_tags(results: Sequence[Result]) -> dict[str, str]:
    """The tags that every result has, with one value."""
    shared = set.intersection(*(set(result.tags.items()) for result in results)) if results else set()
    return dict(shared)


def _mark(note: Annotation, zone: str) -> ChartMark:
    colour = _SERIES_NOTE if note.tsuid else _GLOBAL_NOTE
    return ChartMark(note.start_ms, note.end_ms, colour, note_period(note, zone), note_text(note))


def chart_picture(chart: Chart) -> bytes:
    """A PNG; its legend is below if there is more than one series, or an annotation."""
    from matplotlib.figure import Figure

    labels = [plain(text) for text in chart.labels]
    if len(labels) < 2:
        labels = []
    elif len(labels) > _SHOWN_SERIES:
        labels = [*labels[:_SHOWN_SERIES], f"... {len(labels) - _SHOWN_SERIES} more series"]
    labels += [plain(text) for text in _mark_labels(chart.marks)]
    columns, rows = _legend_shape(labels)
    figure = Figure(figsize=(12, 6 + 0.22 * rows), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    for result, colour in zip(chart.results, chart.colours, strict=True):
        axes.plot(
            result.times_ms.astype("datetime64[ms]"),
            to_floats(result.values),
            color=colour,
            linewidth=1.4,
            marker="o",
            markersize=3,
            markevery=dotted(result.values),
        )
    axes.set_title(plain(chart.title), loc="left", fontsize=13, fontweight="bold", pad=12)
    _dress(axes, chart)
    handles = axes.get_lines()[:_SHOWN_SERIES] if len(chart.results) > 1 else []
    if len(chart.results) > _SHOWN_SERIES:
        handles += axes.plot([], [], linestyle="none")
    handles += _draw_marks(axes, chart.marks)
    if handles:
        figure.legend(handles, labels, loc="outside lower left", ncols=columns, frameon=False, fontsize=9)
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()


def plain(text: str) -> str:
    """Text in which matplotlib finds no formula."""
    return text.replace("$", r"\$")


def _mark_labels(marks: Sequence[ChartMark]) -> list[str]:
    """What a legend says of annotations, with their numbers."""
    labels = []
    for number, mark in enumerate(marks[:_SHOWN_MARKS], 1):
        text = mark.text if len(mark.text) <= _MARK_LETTERS else mark.text[: _MARK_LETTERS - 3] + "..."
        labels.append(f"{number}  {text}")
    if len(marks) > _SHOWN_MARKS:
        labels.append(f"... {len(marks) - _SHOWN_MARKS} more annotations")
    return labels


def _draw_marks(axes: Any, marks: Sequence[ChartMark]) -> list[Any]:
    """Draws annotations: a line with a number at the start, a band to the end; handles for a legend."""
    first_x, last_x = axes.get_xlim()
    handles: list[Any] = []
    before, level = -math.inf, 0
    for number, mark in enumerate(marks, 1):
        start, end = (
            float(axes.convert_xunits(np.datetime64(time, "ms"))) for time in (mark.start_ms, mark.end_ms)
        )
        if end > start:
            axes.axvspan(max(start, first_x), min(end, last_x), color=mark.colour, alpha=0.09, linewidth=0)
        line = axes.plot([], [], color=mark.colour, linestyle="--", linewidth=1.2)[0]
        if first_x <= start <= last_x:
            axes.axvline(start, color=mark.colour, linestyle="--", linewidth=1.2)
        if number > _SHOWN_MARKS:
            continue
        handles.append(line)
        # Numbers that would cover each other stand one below the other.
        level = level + 1 if max(start, first_x) - before < _MARK_GAP * (last_x - first_x) else 0
        before = max(start, first_x)
        axes.annotate(
            str(number),
            (max(start, first_x), 1),
            xycoords=axes.get_xaxis_transform(),
            xytext=(3, -3 - 12 * level),
            textcoords="offset points",
            va="top",
            color=mark.colour,
            fontsize=9,
            bbox={"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1},
        )
    axes.set_xlim(first_x, last_x)
    return handles if len(marks) <= _SHOWN_MARKS else [*handles, *axes.plot([], [], linestyle="none")]


def _legend_shape(labels: Sequence[str]) -> tuple[int, int]:
    """Columns and rows of a chart's legend."""
    if not labels:
        return 1, 0
    columns = max(1, min(len(labels), 5, 160 // (max(map(len, labels)) + 6)))
    return columns, math.ceil(len(labels) / columns)


def _dress(axes: Any, chart: Chart) -> None:
    """Axes with times in the chart's time zone, values in engineering notation, and a light grid."""
    from matplotlib import dates, ticker

    if not chart.results:
        axes.text(0.5, 0.5, "no points in this range", ha="center", va="center", transform=axes.transAxes)
        axes.set(yticks=[])
    untyped: Any = dates
    zone = zoneinfo.ZoneInfo(chart.zone)
    locator = untyped.AutoDateLocator(tz=zone)
    # How ticks at years, months, days, hours, minutes and seconds read; how where that unit begins
    # again; and what stands once, at the end of the axis.
    usual = ["%Y", "%Y-%m", "%m-%d", "%H:%M", "%H:%M", "%H:%M:%S.%f"]
    first = ["", "%Y-%m", "%m-%d", "%m-%d", "%H:%M", "%H:%M:%S"]
    once = ["", "", "%Y", "%Y-%m-%d", "%Y-%m-%d", "%Y-%m-%d"]
    start_ms, end_ms = chart.start_ms, max(chart.end_ms, chart.start_ms + _MINUTE_MS)
    axes.set_xlim(*np.array([start_ms, end_ms], "datetime64[ms]"))
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(
        untyped.ConciseDateFormatter(locator, zone, usual, once, zero_formats=first)
    )
    axes.yaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    axes.set_xlabel(f"time ({chart.zone})", color="#555555")
    axes.set_ylabel(plain(chart.value_label), color="#555555")
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.grid(axis="x", color="#f1f1f1", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
