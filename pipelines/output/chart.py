"""What tables and charts of query results show, and in which words.

Tags that all series of a chart have in common are in its title, once; the time axis is the range that was
asked for, so that an outage at either end is seen.
"""

from __future__ import annotations

import colorsys
import dataclasses
import importlib.util
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from timebeam.pipelines.options.parameters import UsageError
from timebeam.pipelines.output.printable import printable
from timebeam.schema.bits.arrays import Int64s, Values, to_floats
from timebeam.schema.bits.times import UTC, local_ms
from timebeam.schema.core.annotations import Annotation
from timebeam.schema.query.answer import Result

_SHOWN_SERIES = 20
_SHOWN_POINTS = 20


def label(result: Result) -> str:
    """The name of a result: its metric and common tags, and the tag keys it was aggregated over."""
    tags = ",".join(f"{key}={value}" for key, value in result.tags.items())
    over = f" over {','.join(result.aggregate_tags)}" if result.aggregate_tags else ""
    return printable(f"{result.metric}{{{tags}}}{over}")


def _times(times_ms: Int64s, zone: str) -> list[str]:
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


def value_text(value: int | float, nan_is_null: bool) -> str:
    """A value in tables and CSV."""
    if math.isnan(value):
        return "null" if nan_is_null else "NaN"
    return str(value)


def table(results: Sequence[Result], everything: bool, zone: str = UTC) -> str:
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
        lines.append(f"{label(result)}  {_count(count, 'point')}")
        if not count:
            lines += [*_note_lines(result.annotations or (), zone), ""]
            continue
        # One line 'n more' in place of one point would shorten nothing.
        end = count if everything or count <= _SHOWN_POINTS + 1 else _SHOWN_POINTS
        times = _times(result.times_ms[:end], zone)
        values = [value_text(value, result.nan_is_null) for value in result.values[:end].tolist()]
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


def note_period(note: Annotation, zone: str = UTC) -> str:
    """From when to when an annotation is; its start alone if it has no end behind it."""
    times = _times(np.array([note.start_ms, note.end_ms], np.int64), zone)
    return times[0] if note.start_ms == note.end_ms else f"{times[0]} to {times[1]}"


def note_text(note: Annotation) -> str:
    """What an annotation says, in one line."""
    texts = [" ".join(text.split()) for text in (note.description, note.notes) if text]
    fields = ", ".join(f"{key}={text}" for key, text in note.custom or ())
    text = "; ".join(texts) + (f" ({fields})" if fields else "")
    return printable(text) or "(no text)"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


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
