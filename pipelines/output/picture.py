"""A chart as a PNG, drawn by Matplotlib."""

from __future__ import annotations

import io
import math
import zoneinfo
from collections.abc import Sequence
from typing import Any

import numpy as np

from timebeam.pipelines.output.chart import Chart, ChartMark, dotted
from timebeam.schema.bits.arrays import to_floats

_SHOWN_SERIES = 20
_SHOWN_MARKS = 12
_MARK_LETTERS = 72
_MARK_GAP = 0.018  # of the width of a chart: what the number of an annotation takes
_MINUTE_MS = 60_000


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
