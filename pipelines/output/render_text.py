"""The results of a query as a table for a terminal, and the words for results and annotations."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from timebeam.pipelines.output.printable import printable
from timebeam.schema.annotations.record import Annotation
from timebeam.schema.points import Int64s
from timebeam.schema.query.answer import Result

_SHOWN_SERIES = 20
_SHOWN_POINTS = 20


def label(result: Result) -> str:
    """The name of a result: its metric and common tags, and the tag keys it was aggregated over."""
    tags = ",".join(f"{key}={value}" for key, value in result.tags.items())
    over = f" over {','.join(result.aggregate_tags)}" if result.aggregate_tags else ""
    return printable(f"{result.metric}{{{tags}}}{over}")


def _times(times_ms: Int64s) -> list[str]:
    """ISO 8601, with milliseconds if any of the times has them."""
    moments = times_ms.astype("datetime64[ms]")
    texts = np.datetime_as_string(moments, unit="ms" if np.any(times_ms % 1000) else "s")
    return [text + "Z" for text in texts.tolist()]


def value_text(value: int | float, nan_is_null: bool) -> str:
    """A value in tables and CSV."""
    if math.isnan(value):
        return "null" if nan_is_null else "NaN"
    return str(value)


def table(results: Sequence[Result], everything: bool) -> str:
    """A block of lines for each result: its name, its points, its annotations.

    Args:
      everything: whether nothing is shortened.
    """
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
        values = [value_text(value, result.nan_is_null) for value in result.values[:end].tolist()]
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


def note_text(note: Annotation) -> str:
    """What an annotation says, in one line."""
    texts = [" ".join(text.split()) for text in (note.description, note.notes) if text]
    fields = ", ".join(f"{key}={text}" for key, text in note.custom or ())
    text = "; ".join(texts) + (f" ({fields})" if fields else "")
    return printable(text) or "(no text)"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
