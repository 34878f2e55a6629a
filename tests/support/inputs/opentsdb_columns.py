"""Columns and rows of OpenTSDB for Hypothesis, and what Bigtable makes of mutations of a row."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from hypothesis import strategies as st

from tests.schema.stores import plain_opentsdb as plain
from timebeam.schema.core.rows import Cell, Row

FLAGS = (0, 1, 3, 7, 11, 15)


def qualifier_of(element: plain.Element) -> bytes:
    """The qualifier of one point."""
    if element.in_ms:
        return struct.pack(">I", 0xF0000000 | element.offset_ms << 6 | element.flags)
    return struct.pack(">H", element.offset_ms // 1000 << 4 | element.flags)


@st.composite
def elements(draw: st.DrawFn, flags: Sequence[int] = FLAGS) -> plain.Element:
    """One point, mostly near the others."""
    in_ms = draw(st.booleans())
    offset = draw(st.integers(0, 4) | st.sampled_from((80, 95, 96, 3599))) * 1000
    if in_ms:
        offset += draw(st.sampled_from((0, 0, 1, 999)))
    flag = draw(st.sampled_from(flags))
    width = (flag & 7) + 1
    return plain.Element(offset, in_ms, flag, draw(st.binary(min_size=width, max_size=width)))


@st.composite
def columns(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A plain point, a compacted column (sorted or not, with a trailing byte or not), or an append column."""
    kind = draw(st.sampled_from(("plain", "compacted", "append")))
    points = draw(st.lists(elements(), min_size=1 if kind == "plain" else 2, max_size=6))
    if kind == "plain":
        return qualifier_of(points[0]), points[0].value
    if kind == "append":
        name = draw(st.sampled_from((b"\x05\x00\x00", b"\x05\x00\x01", b"\x05\x2a\x2a")))
        return name, b"".join(qualifier_of(point) + point.value for point in points)
    if draw(st.booleans()):
        points.sort()
    trailer = draw(st.sampled_from((b"\x00", b"\x01", b"")))
    return b"".join(map(qualifier_of, points)), b"".join(point.value for point in points) + trailer


KEY = bytes.fromhex("00000150e22700000001000001")
"""Of the hour from 1,356,998,400 s on."""

Versions = dict[tuple[str, bytes], dict[int, bytes]]
"""Values by timestamp, by family and qualifier."""


def versions(row: Row) -> Versions:
    """A row as Bigtable holds it."""
    return {(cell.family, cell.qualifier): {cell.timestamp_ms: cell.value} for cell in row.cells}


def put(held: Versions, *cells: Cell) -> None:
    for cell in cells:
        held.setdefault((cell.family, cell.qualifier), {})[cell.timestamp_ms] = cell.value


def apply(held: Versions, made: Row | None) -> None:
    """Carries a mutation out as Bigtable does: the deletions first, each of a range of versions."""
    for family, qualifier, before_ms in made.deleted if made else ():
        column = held[family, qualifier]
        assert before_ms is not None
        for timestamp in [at for at in column if at < before_ms]:
            del column[timestamp]
    put(held, *(made.cells if made else ()))


def newest(held: Versions) -> Row:
    """What a reader gets: the newest version of each column, by family and qualifier."""
    cells = [
        Cell(family, qualifier, max(column), column[max(column)])
        for (family, qualifier), column in sorted(held.items())
        if column
    ]
    return Row("tsdb", KEY, cells)


def is_points(cell: Cell) -> bool:
    return len(cell.qualifier) % 2 == 0 or cell.qualifier[0] == 5


def content(row: Row) -> dict[int, plain.Number | None]:
    """The value at each offset of the sound columns of a row; None for a value that is no number."""
    sound = []
    for cell in row.cells:
        one = (cell.timestamp_ms, cell.qualifier, cell.value)
        if is_points(cell):
            try:
                plain.read_row([one])
            except plain.CorruptBytesError:
                continue
            sound.append(one)
    return {
        offset: plain.read_value(element.flags, element.value)
        for offset, (_, element) in plain.read_row(sound).items()
    }


@st.composite
def other_cells(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Annotations, histograms, cells cut in half, values of no length, kinds that nobody knows."""
    value = draw(st.binary(max_size=5))
    kind = draw(st.sampled_from(("annotation", "histogram", "unknown", "cut", "append", "flags")))
    if kind == "cut":
        points = draw(st.lists(elements(), min_size=2, max_size=3))
        return b"".join(map(qualifier_of, points)), bytes(sum(len(one.value) for one in points) + 2)
    if kind == "append":
        return b"\x05\x00" + draw(st.sampled_from((b"\x01", b"\x02"))), b"\x00\x03\x01"
    if kind == "flags":  # a length that no number has
        points = draw(st.lists(elements(flags=(2, 4, 0, 8, 11)), min_size=2, max_size=3))
        return b"".join(map(qualifier_of, points)), b"".join(one.value for one in points) + b"\0"
    first = {"annotation": b"\x01", "histogram": b"\x06", "unknown": b"\x09"}[kind]
    return first + draw(st.binary(min_size=2, max_size=2)), value


@st.composite
def rows(draw: st.DrawFn, *, corrupt: bool = True) -> Row:
    kinds = columns() | other_cells() if corrupt else columns()
    found = draw(st.lists(st.tuples(st.integers(0, 3), kinds), max_size=8, unique_by=lambda one: one[1][0]))
    cells = [Cell("t", qualifier, at, value) for at, (qualifier, value) in found]
    return Row("tsdb", KEY, sorted(cells, key=lambda cell: cell.qualifier))
