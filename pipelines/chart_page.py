"""A chart as one self-contained HTML page: canvas, plain JavaScript, no network.

The page's policy forbids it to load anything. Names are in the HTML alone, escaped; the script gets
numbers and colours as JSON.
"""

from __future__ import annotations

import dataclasses
import html
import json
import math
import string
from collections.abc import Sequence

import numpy as np

from schema.query.answer import Result


@dataclasses.dataclass(frozen=True, slots=True)
class Mark:
    """An annotation of a chart: from when to when, in ms, its colour, and what it says, in words."""

    start_ms: int
    end_ms: int
    colour: str
    period: str
    text: str


def chart_page(
    results: Sequence[Result],
    labels: Sequence[str],
    colours: Sequence[str],
    title: str,
    marks: Sequence[Mark] = (),
) -> str:
    """The page: a chart with a read-out under the pointer, and a table of the series below it.

    Annotations are dashed lines, with bands to their ends; they are listed below.

    A click on a row of the table hides and shows its series. Integers above 2**53 are rounded by
    the browser.
    """
    rows, data = [], []
    for i, (result, label) in enumerate(zip(results, labels, strict=True)):
        colour = colours[i % len(colours)]
        rows.append(_row(result, label, colour))
        values = [value if math.isfinite(value) else None for value in result.values.tolist()]
        data.append({"colour": colour, "times": result.times_ms.tolist(), "values": values})
    return _PAGE.substitute(
        title=html.escape(title),
        range=_range(results),
        hidden="" if results else " hidden",
        annotations=f'<ol id="notes">\n{chr(10).join(map(_item, marks))}\n</ol>' if marks else "",
        rows="\n".join(rows),
        # No '<' at all, so that neither '</script>' nor '<!--' can end the element.
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        notes=json.dumps(
            [{"start": mark.start_ms, "end": mark.end_ms, "colour": mark.colour} for mark in marks],
            separators=(",", ":"),
        ),
        script=_SCRIPT,
    )


def _row(result: Result, label: str, colour: str) -> str:
    """One row of the table: the name and a summary of the values that are not NaN."""
    held = result.values[~np.isnan(result.values)]
    figures = [held.min(), held.mean(), held.max(), held[-1]] if len(held) else []
    cells = "".join(f"<td>{text}</td>" for text in (len(held), *(_figure(one.item()) for one in figures)))
    name = f'<i style="background:{colour}"></i><span>{html.escape(label)}</span>'
    return f'<tr tabindex="0" role="button" aria-pressed="true"><th scope="row">{name}</th>{cells}</tr>'


def _item(mark: Mark) -> str:
    """One annotation of the list."""
    period = f'<b style="color:{mark.colour}">{html.escape(mark.period)}</b>'
    return f"<li>{period} <span>{html.escape(mark.text)}</span></li>"


def _figure(value: int | float) -> str:
    """Integers whole, floats to six digits, with an exponent only where there would be many zeros."""
    if isinstance(value, int):
        return f"{value:,}"
    if value and not 1e-4 <= abs(value) < 1e15:
        return f"{value:.6g}"
    decimals = max(0, 5 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def _range(results: Sequence[Result]) -> str:
    """From when to when the points are, in words."""
    if not results:
        return "no points in this range"
    ends = np.array([[result.times_ms[0], result.times_ms[-1]] for result in results])
    first, last = np.datetime_as_string(
        np.array([ends.min(), ends.max()], "datetime64[ms]"), unit="s"
    ).tolist()
    return f"{first.replace('T', ' ')} to {last.replace('T', ' ')} UTC"


_PAGE = string.Template("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>$title</title>
<style>
body { margin: 0 auto; padding: 1.2rem 1.6rem; max-width: 90rem; background: #fff; color: #222;
  font: 14px/1.4 system-ui, sans-serif; }
h1 { margin: 0; font-size: 1.3rem; overflow-wrap: anywhere; }
p { margin: .1rem 0 .8rem; color: #666; }
#plot { position: relative; height: 58vh; min-height: 300px; }
canvas { position: absolute; inset: 0; width: 100%; height: 100%; }
#readout { position: absolute; display: none; pointer-events: none; padding: .4rem .6rem; font-size: 12px;
  background: rgba(255, 255, 255, .95); border: 1px solid #ccc; border-radius: 4px;
  box-shadow: 0 1px 5px rgba(0, 0, 0, .15); white-space: nowrap; }
#readout div:first-child { color: #666; }
#readout .nearest { background: #eef2f7; }
#readout b { font-variant-numeric: tabular-nums; margin-right: .5em; }
#readout .note { max-width: 28rem; white-space: normal; font-weight: 600; }
#readout small { color: #888; margin-left: .5em; }
#series { max-height: 34vh; overflow: auto; margin-top: .8rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
#notes { margin: .8rem 0 0; padding-left: 2rem; overflow-wrap: anywhere; }
#notes b { font-weight: 600; margin-right: .5em; font-variant-numeric: tabular-nums; }
#notes .nearest { background: #eef2f7; }
th, td { padding: .15rem .9rem .15rem .3rem; text-align: right; font-weight: normal; }
thead th { white-space: nowrap; position: sticky; top: 0; background: #fff; color: #666; font-size: 12px; }
th:first-child { text-align: left; overflow-wrap: anywhere; }
tbody tr { cursor: pointer; border-top: 1px solid #eee; }
tbody tr:hover { background: #f5f7fa; }
tr[aria-pressed=false] { opacity: .35; }
i { display: inline-block; width: 14px; height: 4px; border-radius: 2px; margin-right: .6em;
  vertical-align: middle; }
</style>
</head>
<body>
<h1>$title</h1>
<p>$range</p>
<div id="plot"$hidden><canvas id="lines"></canvas><canvas id="marks"></canvas><div id="readout"></div></div>
<div id="series"$hidden><table>
<thead><tr><th>series (click to hide or show)</th>
<th>points</th><th>min</th><th>mean</th><th>max</th><th>last</th></tr></thead>
<tbody>
$rows
</tbody>
</table></div>
$annotations
<script type="application/json" id="data">$data</script>
<script type="application/json" id="marked">$notes</script>
<script>
$script
</script>
</body>
</html>
""")

_SCRIPT = r"""
'use strict';
const series = JSON.parse(document.getElementById('data').textContent);
const rows = [...document.querySelectorAll('tbody tr')];
const plot = document.getElementById('plot'), readout = document.getElementById('readout');
const notes = JSON.parse(document.getElementById('marked').textContent);
const items = [...document.querySelectorAll('#notes li')];
const lines = document.getElementById('lines').getContext('2d');
const marks = document.getElementById('marks').getContext('2d');
const SECOND = 1000, MINUTE = 60 * SECOND, HOUR = 60 * MINUTE, DAY = 24 * HOUR;
const edge = {left: 64, right: 32, top: 10, bottom: 40};
let width, height, times, values;  // size in px; ranges shown, as [from, to]

const shown = i => rows[i].getAttribute('aria-pressed') === 'true';
const x = time => edge.left + (time - times[0]) / (times[1] - times[0]) * (width - edge.left - edge.right);
const y = value => height - edge.bottom
  - (value - values[0]) / (values[1] - values[0]) * (height - edge.top - edge.bottom);

function setRanges() {
  times = [Infinity, -Infinity];
  values = [Infinity, -Infinity];
  const widen = (range, at) => { range[0] = Math.min(range[0], at); range[1] = Math.max(range[1], at); };
  series.forEach((one, i) => {
    widen(times, one.times[0]);
    widen(times, one.times[one.times.length - 1]);
    if (shown(i)) for (const value of one.values) if (value !== null) widen(values, value);
  });
  if (!(values[0] <= values[1])) values = [0, 1];
  if (times[0] === times[1]) times = [times[0] - MINUTE, times[1] + MINUTE];
  const margin = values[0] === values[1] ? Math.abs(values[0]) / 10 || 1 : (values[1] - values[0]) / 20;
  values = [values[0] - margin, values[1] + margin];
}

function valueTicks() {
  const rough = (values[1] - values[0]) / Math.max(2, height / 60);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find(factor => factor * power >= rough);
  const ticks = [];
  for (let k = Math.ceil(values[0] / step); k * step <= values[1]; k++) ticks.push(k * step);
  const largest = Math.max(...ticks.map(Math.abs));
  const group = largest ? Math.max(-4, Math.min(6, Math.floor(Math.log10(largest * 1.000001) / 3))) : 0;
  const digits = Math.max(0, Math.min(15, Math.ceil(3 * group - Math.log10(step) - 1e-9)));
  const prefix = ['p', 'n', 'µ', 'm', '', 'k', 'M', 'G', 'T', 'P', 'E'][group + 4];
  return ticks.map(tick => [tick, tick ? (tick / 10 ** (3 * group)).toFixed(digits) + prefix : '0']);
}

function timeTicks() {
  const rough = (times[1] - times[0]) / Math.max(2, width / 110);
  const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, ...[1, 2, 5, 10, 15, 30].map(n => n * SECOND),
    ...[1, 2, 5, 10, 15, 30].map(n => n * MINUTE), ...[1, 2, 3, 6, 12].map(n => n * HOUR),
    ...[1, 2, 4, 7, 14].map(n => n * DAY)];
  const step = steps.find(one => one >= rough);
  const ticks = [];
  if (step) {
    for (let time = Math.ceil(times[0] / step) * step; time <= times[1]; time += step) ticks.push(time);
  } else {
    const months = [1, 2, 3, 6, 12, 24, 60, 120].find(one => one * 30 * DAY >= rough) || 600;
    const from = new Date(times[0]);
    let month = (from.getUTCFullYear() - 1970) * 12 + from.getUTCMonth();
    for (month -= month % months; Date.UTC(1970, month) <= times[1]; month += months) {
      if (Date.UTC(1970, month) >= times[0]) ticks.push(Date.UTC(1970, month));
    }
  }
  let day = '';
  return ticks.map(time => {
    const text = new Date(time).toISOString(), date = text.slice(0, 10);
    if (!step || step >= DAY) return [time, date, ''];
    const clock = text.slice(11, step < SECOND ? 23 : step < MINUTE ? 19 : 16);
    const below = date === day ? '' : date;
    day = date;
    return [time, clock, below];
  });
}

function drawAxes() {
  lines.font = '12px system-ui, sans-serif';
  lines.lineWidth = 1;
  lines.fillStyle = '#555';
  lines.textAlign = 'right';
  lines.textBaseline = 'middle';
  for (const [value, text] of valueTicks()) {
    const at = Math.round(y(value)) + .5;
    lines.strokeStyle = '#e4e4e4';
    line(lines, edge.left, at, width - edge.right, at);
    lines.fillText(text, edge.left - 8, at);
  }
  lines.textAlign = 'center';
  lines.textBaseline = 'top';
  for (const [time, text, below] of timeTicks()) {
    const at = Math.round(x(time)) + .5;
    lines.strokeStyle = '#f1f1f1';
    line(lines, at, edge.top, at, height - edge.bottom);
    lines.fillText(text, at, height - edge.bottom + 7);
    lines.fillText(below, at, height - edge.bottom + 22);
  }
  lines.strokeStyle = '#888';
  line(lines, edge.left, height - edge.bottom + .5, width - edge.right, height - edge.bottom + .5);
}

function drawSeries(one) {
  const held = k => one.values[k] !== null && one.values[k] !== undefined;
  const dots = one.times.length * 8 < width;
  lines.strokeStyle = lines.fillStyle = one.colour;
  lines.lineWidth = 1.5;
  lines.lineJoin = 'round';
  lines.beginPath();
  one.times.forEach((time, k) => {
    if (!held(k)) return;
    if (held(k - 1)) lines.lineTo(x(time), y(one.values[k]));
    else lines.moveTo(x(time), y(one.values[k]));
  });
  lines.stroke();
  one.times.forEach((time, k) => {
    if (held(k) && (dots || !held(k - 1) && !held(k + 1))) dot(lines, x(time), y(one.values[k]), 2);
  });
}

function drawNotes() {
  const inside = at => Math.max(edge.left, Math.min(width - edge.right, at));
  lines.textAlign = 'center';
  lines.textBaseline = 'top';
  let before = -Infinity, level = 0;
  notes.forEach((note, i) => {
    const from = x(note.start), to = x(note.end);
    lines.fillStyle = lines.strokeStyle = note.colour;
    lines.globalAlpha = .09;
    lines.fillRect(inside(from), edge.top, inside(to) - inside(from), height - edge.top - edge.bottom);
    lines.globalAlpha = 1;
    if (from !== inside(from)) return;
    level = from - before < 16 ? level + 1 : 0;  // numbers that would cover each other
    before = from;
    lines.lineWidth = 1.2;
    lines.setLineDash([5, 4]);
    line(lines, from, edge.top + 14 + 13 * level, from, height - edge.bottom);
    lines.setLineDash([]);
    lines.fillText(i + 1, from, edge.top - 2 + 13 * level);
  });
}

/* Marks in the list, and tells, the annotations whose lines are under the pointer. */
function hoverNotes(left) {
  const under = notes.map(note => Math.abs(x(note.start) - left) <= 4);
  items.forEach((item, i) => { item.className = under[i] ? 'nearest' : ''; });
  return items.filter((item, i) => under[i]).map(item => item.querySelector('span').textContent);
}

function line(context, x0, y0, x1, y1) {
  context.beginPath(); context.moveTo(x0, y0); context.lineTo(x1, y1); context.stroke();
}

function dot(context, left, top, radius) {
  context.beginPath(); context.arc(left, top, radius, 0, 2 * Math.PI); context.fill();
}

function draw() {
  width = plot.clientWidth;
  height = plot.clientHeight;
  leave();
  for (const context of [lines, marks]) {
    context.canvas.width = width * devicePixelRatio;
    context.canvas.height = height * devicePixelRatio;
    context.scale(devicePixelRatio, devicePixelRatio);
  }
  if (!series.length) return;
  setRanges();
  drawAxes();
  drawNotes();
  series.forEach((one, i) => { if (shown(i)) drawSeries(one); });
}

/* The index of the point nearest in time that has a value, or -1. */
function nearest(one, time) {
  let low = 0, high = one.times.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (one.times[middle] < time) low = middle + 1; else high = middle;
  }
  let before = low - 1, after = low;
  while (before >= 0 && one.values[before] === null) before--;
  while (after < one.times.length && one.values[after] === null) after++;
  if (after >= one.times.length) return before;
  return before >= 0 && time - one.times[before] < one.times[after] - time ? before : after;
}

function nearPoints(left, top) {
  const time = times[0] + (left - edge.left) / (width - edge.left - edge.right) * (times[1] - times[0]);
  const near = [];
  series.forEach((one, i) => {
    const k = shown(i) ? nearest(one, time) : -1;
    if (k < 0) return;
    const point = {i, time: one.times[k], value: one.values[k], x: x(one.times[k]), y: y(one.values[k])};
    if (Math.abs(point.x - left) <= 40) near.push(point);
  });
  const distance = point => Math.hypot(point.x - left, point.y - top);
  near.sort((a, b) => distance(a) - distance(b));
  return near.slice(0, 12);
}

function timeText(time) {
  return new Date(time).toISOString().replace('T', ' ').replace(/(\.000)?Z$/, '');
}

function valueText(value) {
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(7)));
}

function element(tag, text, parent) {
  const made = parent.appendChild(document.createElement(tag));
  made.textContent = text;
  return made;
}

function hover(event) {
  marks.clearRect(0, 0, width, height);
  const box = plot.getBoundingClientRect(), left = event.clientX - box.left, top = event.clientY - box.top;
  const near = series.length ? nearPoints(left, top) : [], first = near[0];
  const said = series.length ? hoverNotes(left) : [];
  readout.style.display = first || said.length ? 'block' : 'none';
  if (!first && !said.length) return;
  readout.textContent = '';
  element('div', first ? timeText(first.time) + ' UTC' : '', readout);
  for (const text of said) element('div', text, readout).className = 'note';
  if (first) tellPoints(near, first);
  const beside = left + 16 + readout.offsetWidth > width ? left - 16 - readout.offsetWidth : left + 16;
  readout.style.left = Math.max(0, beside) + 'px';
  readout.style.top = Math.max(0, Math.min(top + 12, height - readout.offsetHeight)) + 'px';
}

function tellPoints(near, first) {
  marks.strokeStyle = '#999';
  line(marks, first.x, edge.top, first.x, height - edge.bottom);
  for (const point of near.sort((a, b) => a.y - b.y)) {
    const entry = element('div', '', readout);
    element('i', '', entry).style.background = marks.fillStyle = series[point.i].colour;
    element('b', valueText(point.value), entry);
    element('span', rows[point.i].querySelector('span').textContent, entry);
    if (point === first) entry.className = 'nearest';
    if (point.time !== first.time) element('small', timeText(point.time), entry);
    dot(marks, point.x, point.y, point === first ? 5 : 3.5);
  }
}

function leave() {
  marks.clearRect(0, 0, width, height);
  items.forEach(item => { item.className = ''; });
  readout.style.display = 'none';
}

function toggle(row) {
  row.setAttribute('aria-pressed', row.getAttribute('aria-pressed') !== 'true');
  draw();
}

rows.forEach(row => {
  row.addEventListener('click', () => toggle(row));
  row.addEventListener('keydown', event => {
    if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); toggle(row); }
  });
});
plot.addEventListener('pointermove', hover);
plot.addEventListener('pointerleave', leave);
new ResizeObserver(draw).observe(plot);
draw();
"""
