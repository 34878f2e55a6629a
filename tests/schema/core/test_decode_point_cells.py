"""Rows of Heroic and KairosDB decoded together are as decoded one by one, whatever is in them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.budget import examples
from timebeam.schema.core.points import Series
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.core.selection import DecodedRows, Selected
from timebeam.schema.stores.heroic import decode as heroic
from timebeam.schema.stores.heroic.keys import KeyForm, ReadableKeys
from timebeam.schema.stores.heroic.layout import Heroic
from timebeam.schema.stores.heroic.options import HeroicReadableOptions
from timebeam.schema.stores.heroic.wire_key import WireKeys
from timebeam.schema.stores.kairosdb import decode as kairosdb
from timebeam.schema.stores.kairosdb import keys
from timebeam.schema.stores.kairosdb.layout import KairosDb
from timebeam.schema.stores.kairosdb.options import KairosDbOptions, RowSpec

SERIES = [Series.of("m", {"host": name}) for name in "ab"]
DOUBLES = st.floats(allow_nan=False).map(lambda value: struct.pack(">d", value))
ODD = st.binary(max_size=9)
SPECS = [RowSpec.LEGACY, RowSpec.MILLISECONDS, RowSpec.SECONDS]


def form_of(layout: Heroic) -> KeyForm:
    """The form of the keys and qualifiers of a layout."""
    return ReadableKeys() if isinstance(layout.options, HeroicReadableOptions) else WireKeys()


def heroic_row(layout: Heroic) -> st.SearchStrategy[Selected]:
    """A row, most of them of doubles in order."""
    good = st.integers(0, 2**32 - 1).map(lambda offset: b"%010d" % offset)
    if not isinstance(layout.options, HeroicReadableOptions):
        good = st.integers(0, 2**32 - 1).map(lambda offset: offset.to_bytes(4, "big"))
    plain = st.lists(st.tuples(st.just("points"), good, DOUBLES), max_size=5)
    families = st.sampled_from(("points", "points", "distributionPoints", "events"))
    mixed = st.lists(st.tuples(families, good | ODD, DOUBLES | ODD), max_size=4)

    def row(number: int, base: int, cells: list[tuple[str, bytes, bytes]], arrival_ms: int) -> Selected:
        series = SERIES[number]
        key = form_of(layout).row_key(layout.series_key(series, {}), base << 32)
        return Selected(Row("metrics", key, in_order(cells, arrival_ms)), series)

    return st.builds(row, st.integers(0, 1), st.integers(0, 3), plain | mixed, st.integers(0, 9))


def kairosdb_row(spec: RowSpec) -> st.SearchStrategy[Selected]:
    """A row, most of them of longs or doubles in order."""
    shift = 1 if spec is RowSpec.LEGACY else 0
    good = st.integers(0, spec.width_ms // spec.unit_ms - 1).map(lambda n: (n << shift).to_bytes(4, "big"))
    longs = st.sampled_from((b"\x00", b"\x02", b"\x80\x01", b"\xff\xff\x03"))
    families = st.sampled_from(("d", "d7", "x"))
    cells = (
        st.lists(st.tuples(st.just("d"), good, longs), max_size=5)
        | st.lists(st.tuples(st.just("d7"), good, DOUBLES), max_size=5)
        | st.lists(st.tuples(families, good | ODD, longs | DOUBLES | ODD), max_size=4)
    )

    def row(number: int, base: int, kind: int, cells: list[tuple[str, bytes, bytes]], ms: int) -> Selected:
        series = SERIES[number]
        key = keys.row_key(keys.series_key(series), base * spec.width_ms, kind)
        return Selected(Row("data_points", key, in_order(cells, ms)), series)

    return st.builds(row, st.integers(0, 1), st.integers(0, 3), st.integers(0, 2), cells, st.integers(0, 9))


def in_order(cells: list[tuple[str, bytes, bytes]], arrival_ms: int) -> list[Cell]:
    """Cells as Bigtable gives them: by family and column, each column once."""
    by_column = {(family, qualifier): value for family, qualifier, value in cells}
    return [Cell(*column, arrival_ms, value) for column, value in sorted(by_column.items())]


def decoded_alone(layout: Heroic | KairosDb, row: Row, series: Series) -> DecodedRows:
    """What the reference of the layout reads."""
    if isinstance(layout, Heroic):
        return heroic.decode_row(row, series, form_of(layout))
    return kairosdb.decode_row(layout.options.row_spec, row, series)


def one_by_one(layout: Heroic | KairosDb, rows: list[Selected]) -> tuple[list[object], list[object], int]:
    points, corruption, skipped = [], [], 0
    for row, series, _ in rows:
        decoded = decoded_alone(layout, row, series)
        points += described(decoded.batch)
        corruption += decoded.corruption
        skipped += decoded.skipped
    return points, corruption, skipped


def described(batch) -> list[object]:
    return [
        (*point[:2], repr(point[2]), bool(batch.in_ms[number]), int(batch.arrivals_ms[number]))
        for number, point in enumerate(batch.points())
    ]


@pytest.mark.parametrize(
    "layout", [Heroic(), Heroic(HeroicReadableOptions())], ids=lambda layout: layout.name
)
@examples(200)
@given(st.data())
def test_rows_of_heroic(layout: Heroic, data: st.DataObject) -> None:
    rows = data.draw(st.lists(heroic_row(layout), max_size=5))
    decoded = layout.decode_rows(rows)
    assert (described(decoded.batch), decoded.corruption, decoded.skipped) == one_by_one(layout, rows)


@pytest.mark.parametrize("spec", SPECS)
@examples(200)
@given(st.data())
def test_rows_of_kairosdb(spec: RowSpec, data: st.DataObject) -> None:
    layout = KairosDb(KairosDbOptions(row_spec=spec))
    rows = data.draw(st.lists(kairosdb_row(spec), max_size=5))
    decoded = layout.decode_rows(rows)
    assert (described(decoded.batch), decoded.corruption, decoded.skipped) == one_by_one(layout, rows)


def test_good_rows_are_not_decoded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = KairosDb(KairosDbOptions())
    key = keys.row_key(keys.series_key(SERIES[0]), 0, 0)
    row = Row("data_points", key, [Cell("d", bytes(4), 1, b"\x02")])
    monkeypatch.setattr(kairosdb, "decode_row", None)
    assert described(layout.decode_rows([Selected(row, SERIES[0])]).batch) == [(SERIES[0], 0, "1", False, 1)]
