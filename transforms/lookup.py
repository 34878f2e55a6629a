"""The series that a query asks for, out of Bigtable."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from schema.layouts import Layout, Name, Row
from schema.points import Kind, PointBatch, Series
from schema.query.answer import FoundSeries
from transforms.bigtable.reader import scan_rows
from transforms.bigtable.target import Target
from transforms.uids import UidTable


class UnknownNameError(LookupError):
    """A metric, tag key or tag value that the tables do not know."""


def find_series(
    target: Target,
    layout: Layout,
    metric: str,
    tags: Mapping[str, frozenset[str]],
    start_ms: int,
    end_ms: int,
) -> tuple[list[FoundSeries], list[str]]:
    """(the series of a metric in a time range, what could not be read of them).

    The points are those of all rows that the range touches, so some lie outside of it.

    Args:
      tags: for each tag key that a series must have, the values it may have; empty for any.
      start_ms, end_ms: first and last time wanted, in ms.

    Raises:
      UnknownNameError: a name has no UID.
    """
    table = UidTable(target, layout)
    wanted = [Name("metrics", metric), *(Name("tagk", key) for key in tags)]
    wanted += [Name("tagv", value) for values in tags.values() for value in values]
    uids = table.look_up(wanted)
    for name in wanted:
        if name not in uids:
            raise UnknownNameError(f"No such name for '{name.kind}': '{name.text}'")
    pattern = {
        uids[Name("tagk", key)]: uids[Name("tagv", next(iter(values)))] if len(values) == 1 else None
        for key, values in tags.items()
    }
    rows = list(scan_rows(target, layout.scan(uids[Name("metrics", metric)], pattern, start_ms, end_ms)))
    names = table.names_of({pair for row in rows for pair in layout.row_names(row.key)})
    damage: list[str] = []
    batches: dict[Series, list[PointBatch]] = {}
    for row in rows:
        series = _series(layout, row, names)
        if any(values and dict(series.tags)[key] not in values for key, values in tags.items()):
            continue
        decoded = layout.decode(row, series)
        damage += [f"row {row.key.hex()}: {text}" for text in decoded.damage]
        batches.setdefault(series, []).append(decoded.batch)
    return [_joined(series, parts) for series, parts in batches.items()], damage


def _series(layout: Layout, row: Row, names: Mapping[tuple[str, bytes], str]) -> Series:
    """The series of a row; a UID without a name is shown in hex."""
    texts = [names.get(pair, f"unknown-uid-{pair[1].hex()}") for pair in layout.row_names(row.key)]
    return Series.of(texts[0], dict(zip(texts[1::2], texts[2::2], strict=True)))


def _joined(series: Series, parts: list[PointBatch]) -> FoundSeries:
    """The points of a series' rows, which follow each other in time."""
    times_ms = np.concatenate([part.times_ms for part in parts])
    integers = all((part.kinds == Kind.INTEGER).all() for part in parts)
    values = np.concatenate([part.bits if integers else part.floats for part in parts])
    order = np.argsort(times_ms, kind="stable")
    return FoundSeries(series, times_ms[order], values[order])
