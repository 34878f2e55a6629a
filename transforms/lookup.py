"""The series that a query asks for, out of Bigtable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from schema.layouts import Layout, Name, Row
from schema.points import Kind, PointBatch, Series
from schema.query.answer import FoundSeries
from transforms.bigtable.reader import scan_rows
from transforms.bigtable.target import Target
from transforms.uids import UidTable

Pairs = Sequence[tuple[str, bytes]]
"""(kind, UID) of what a row key holds: the metric, then tag keys and values in turn."""


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
    allowed = {
        uids[Name("tagk", key)]: {uids[Name("tagv", value)] for value in values}
        for key, values in tags.items()
    }
    pattern = {key: next(iter(values)) if len(values) == 1 else None for key, values in allowed.items()}
    damage: list[str] = []
    found: list[tuple[Row, Pairs]] = []
    for row in scan_rows(target, layout.scan(uids[Name("metrics", metric)], pattern, start_ms, end_ms)):
        try:
            pairs = layout.row_names(row.key)
        except ValueError as error:
            damage.append(str(error))
            continue
        of_key = {key: value for (_, key), (_, value) in zip(pairs[1::2], pairs[2::2], strict=True)}
        if all(not values or of_key[key] in values for key, values in allowed.items()):
            found.append((row, pairs))
    names = table.names_of({pair for _, pairs in found for pair in pairs})
    batches: dict[Series, list[PointBatch]] = {}
    for row, pairs in found:
        series = _series(pairs, names)
        decoded = layout.decode(row, series)
        damage += [f"row {row.key.hex()}: {text}" for text in decoded.damage]
        batches.setdefault(series, []).append(decoded.batch)
    return [_joined(series, parts) for series, parts in batches.items()], damage


def _series(pairs: Pairs, names: Mapping[tuple[str, bytes], str]) -> Series:
    """The series of a row's UIDs; one without a name is shown in hex."""
    texts = [names.get(pair, f"unknown-uid-{pair[1].hex()}") for pair in pairs]
    return Series.of(texts[0], dict(zip(texts[1::2], texts[2::2], strict=True)))


def _joined(series: Series, parts: list[PointBatch]) -> FoundSeries:
    """The points of a series' rows, which follow each other in time."""
    times_ms = np.concatenate([part.times_ms for part in parts])
    integers = all((part.kinds == Kind.INTEGER).all() for part in parts)
    values = np.concatenate([part.bits if integers else part.floats for part in parts])
    order = np.argsort(times_ms, kind="stable")
    return FoundSeries(series, times_ms[order], values[order])
