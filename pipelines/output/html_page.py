"""Self-contained HTML pages, which load nothing and follow the reader's light or dark mode; charts on them.

Plotly draws the charts, and its script is part of the file (4.8 MB). A click on a series in the legend hides
it, a double click shows it alone.
"""

from __future__ import annotations

import html
import json
import string
from collections.abc import Sequence
from typing import Any

import numpy as np

from timebeam.pipelines.output.chart import Chart, ChartMark, dotted
from timebeam.schema.bits.arrays import to_floats
from timebeam.schema.bits.times import local_ms


def html_page(title: str, style: str, body: str) -> str:
    """A page with a heading.

    Args:
      title: plain text.
      style: CSS; it can use the colours `--page`, `--ink`, `--soft` and `--line`.
      body: HTML that follows the heading; its scripts are part of it.
    """
    return _PAGE.substitute(title=html.escape(title), style=style, body=body)


_PAGE = string.Template("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
script-src 'unsafe-inline'; img-src data: blob:">
<title>$title</title>
<style>
:root { color-scheme: light dark; --page: #fff; --ink: #1d2125; --soft: #5c6670; --line: #d9dee3; }
@media (prefers-color-scheme: dark) {
  :root { --page: #16191d; --ink: #e3e6e9; --soft: #9aa5b0; --line: #343b43; }
}
body { margin: 0 auto; padding: 1.2rem 1.6rem 4rem; max-width: 110rem; background: var(--page);
  color: var(--ink); font: 14px/1.5 system-ui, sans-serif; }
h1 { margin: 0 0 .6rem; font-size: 1.3rem; overflow-wrap: anywhere; }
p { margin: 0 0 .6rem; color: var(--soft); overflow-wrap: anywhere; }
$style</style>
</head>
<body>
<h1>$title</h1>
$body
</body>
</html>
""")


_COMPARED_SERIES = 12
"""Up to so many series are listed under the pointer; of more, the nearest one is."""

_CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "scrollZoom": True,
    "typesetMath": False,
    "modeBarButtonsToRemove": ["select2d", "lasso2d"],
    # Since version 7 Plotly offers to upload a chart to its makers; the page's policy would not prevent it.
    "showSendToCloud": False,
}

_LIGHT, _DARK = (
    {
        "font.color": ink,
        "hoverlabel.bgcolor": page,
        "modebar.color": soft,
        "modebar.activecolor": ink,
        "hoverlabel.font.color": ink,
        **{f"{axis}.gridcolor": line for axis in ("xaxis", "yaxis")},
        **{f"{axis}.zerolinecolor": line for axis in ("xaxis", "yaxis")},
    }
    for ink, page, soft, line in (
        ("#1d2125", "#ffffff", "#8a949e", "#dde2e7"),
        ("#e3e6e9", "#16191d", "#7a858f", "#343b43"),
    )
)


def chart_page(chart: Chart) -> str:
    """The page. Integers above 2**53 are rounded by the browser."""
    from plotly.io import to_html

    plot = to_html(
        _figure(chart),
        config=_CONFIG,
        include_plotlyjs=True,
        full_html=False,
        default_height="72vh",
        div_id="chart",
        post_script=_SCRIPT.substitute(light=json.dumps(_LIGHT), dark=json.dumps(_DARK)),
    )
    marks = "\n".join(['<ol id="notes">', *map(_item, chart.marks), "</ol>"]) if chart.marks else ""
    note = "" if chart.results else "<p>no points in this range</p>\n"
    return html_page(chart.title, _STYLE, f"{note}{plot}\n{marks}")


def _figure(chart: Chart) -> Any:
    """The figure. Plotly reads names as a kind of HTML, so they are escaped."""
    from plotly.graph_objects import Figure, Scatter

    lines = []
    for result, label, colour in zip(chart.results, chart.labels, chart.colours, strict=True):
        dots = dotted(result.values)
        sizes = np.zeros(len(result.values), np.uint8)
        sizes[dots] = 5
        lines.append(
            Scatter(
                # A date axis takes numbers as ms since 1970, and knows no time zone.
                x=local_ms(result.times_ms, chart.zone).astype(np.float64),
                y=to_floats(result.values),
                name=_literal(label),
                mode="lines+markers" if dots else "lines",
                line={"color": colour, "width": 1.5},
                marker={"color": colour, "size": sizes, "line": {"width": 0}} if dots else None,
            )
        )
    shapes, numbers = _marks(chart.marks, chart.zone)
    span = local_ms(np.array([chart.start_ms, chart.end_ms], np.int64), chart.zone).tolist()
    figure = Figure(lines)
    figure.update_layout(
        template="none",
        showlegend=len(lines) > 1,
        hovermode="x unified" if len(lines) <= _COMPARED_SERIES else "closest",
        hoverlabel={"namelength": -1},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        modebar={"bgcolor": "rgba(0,0,0,0)"},
        margin={"l": 70, "r": 20, "t": 30, "b": 50},
        xaxis={"type": "date", "range": span, "title": f"time ({chart.zone})"},
        yaxis={"title": _literal(chart.value_label), "exponentformat": "SI"},
        shapes=shapes,
        annotations=numbers,
    )
    return figure


def _marks(marks: Sequence[ChartMark], zone: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(dashed lines at the starts of annotations with bands to their ends, numbers that say the text)."""
    shapes, numbers = [], []
    for number, mark in enumerate(marks, 1):
        start, end = local_ms(np.array([mark.start_ms, mark.end_ms], np.int64), zone).tolist()
        place = {"yref": "paper", "y0": 0, "y1": 1, "xref": "x", "x0": start}
        if mark.end_ms > mark.start_ms:
            band = {"fillcolor": mark.colour, "opacity": 0.1, "line": {"width": 0}}
            shapes.append({"type": "rect", **place, "x1": end, **band})
        dashes = {"color": mark.colour, "width": 1.2, "dash": "dash"}
        shapes.append({"type": "line", **place, "x1": start, "line": dashes})
        numbers.append(
            {
                "x": start,
                "xref": "x",
                "y": 1,
                "yref": "paper",
                "yanchor": "bottom",
                "text": str(number),
                "hovertext": _literal(f"{mark.period}: {mark.text}"),
                "showarrow": False,
                "font": {"color": mark.colour},
            }
        )
    return shapes, numbers


def _literal(text: str) -> str:
    """Text in which Plotly finds no tags; of entities it knows those of these three characters."""
    return html.escape(text, quote=False)


def _item(mark: ChartMark) -> str:
    """One annotation of the list."""
    period = f'<b style="color:{mark.colour}">{html.escape(mark.period)}</b>'
    return f"<li>{period} <span>{html.escape(mark.text)}</span></li>"


_SCRIPT = string.Template("""\
const dark = window.matchMedia('(prefers-color-scheme: dark)');
const paint = () => Plotly.relayout('{plot_id}', dark.matches ? $dark : $light);
dark.addEventListener('change', paint);
paint();
""")

_STYLE = """\
#notes { margin: .8rem 0 0; padding-left: 2rem; overflow-wrap: anywhere; }
#notes b { font-weight: 600; margin-right: .5em; font-variant-numeric: tabular-nums; }
"""
