"""The index tables, the rows that queries find by them, and the audit of all three tables."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schema.stores import plain_kairosdb as plain
from tests.support.decoded import decode_row
from timebeam.schema.core.contract import pack_row
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.core.selection import Finding, Selected, Selection, Severity, UnknownNameError
from timebeam.schema.stores.kairosdb.layout import KairosDb
from timebeam.schema.stores.kairosdb.options import KairosDbOptions, RowSpec

WIDTH = plain.WIDTH_MS
SERIES = [
    Series.of("cpu", {"host": "a"}),
    Series.of("cpu", {"host": "b", "dc": "x"}),
    Series.of("cpu", {"host": "c", "dc": "x:y"}),
    Series.of("cpu2", {"host": "a"}),
]
Value = int | float | str
Points = Sequence[tuple[Series, int, Value]]


def rows_of(layout: KairosDb, points: Points) -> list[Row]:
    """All rows that an ingest of some points writes."""
    batch = PointBatch.of([(series, time, True, value) for series, time, value in points], 1)
    encoded = layout.encode(batch, [layout.series_key(series, {}) for series in batch.series])
    rows = [
        pack_row(layout, *fragment[:2], [fragment.packed], Packing.POINTS) for fragment in encoded.fragments
    ]
    merged: dict[tuple[str, bytes], dict[tuple[str, bytes], Cell]] = {}
    for number, entry in layout.index.entries(batch):
        for row in layout.index.rows(batch.series[number], entry):
            cells = merged.setdefault((row.table, row.key), {})
            for cell in row.cells:
                assert cells.setdefault((cell.family, cell.qualifier), cell) == cell
    return rows + [Row(table, key, list(cells.values())) for (table, key), cells in merged.items()]


def found(layout: KairosDb, reader: plain.MemoryReader, wanted: Selection) -> set[tuple[Series, int, Value]]:
    """The wanted points that are read, of each instant the one of the newest row."""
    points = set()
    for selected in layout.select(wanted, reader):
        assert isinstance(selected, Selected)
        decoded = decode_row(layout, selected.row, selected.series)
        assert decoded.corruption == []
        points |= {point for point in decoded.batch.points() if wanted.start_ms <= point[1] <= wanted.end_ms}
    return points  # type: ignore[return-value]


TIMES = st.sampled_from([0, 1, 5, WIDTH - 1, WIDTH, WIDTH + 1, 2 * WIDTH + 7, 3 * WIDTH - 1, 700 * WIDTH])
POINTS = st.lists(
    st.tuples(st.sampled_from(SERIES), TIMES, st.sampled_from([1, 2.5, "x"])),
    max_size=12,
    unique_by=lambda point: (point[0], point[1]),
)
TAGS = st.sampled_from(
    [{}, {"host": []}, {"dc": []}, {"host": ["a", "c"]}, {"dc": ["x:y"], "host": []}, {"no": []}]
)


@pytest.mark.parametrize("spec", [RowSpec.LEGACY, RowSpec.MILLISECONDS])
@given(
    points=POINTS,
    metric=st.sampled_from(["cpu", "cpu2", None]),
    tags=TAGS,
    start=TIMES | st.just(-5),
    end=TIMES | st.just((1 << 63) - 1),
    classes=st.sampled_from([(), (7,)]),
)
def test_queries_find_what_was_stored(
    spec: RowSpec,
    points: Points,
    metric: str | None,
    tags: dict[str, list[str]],
    start: int,
    end: int,
    classes: tuple[int, ...],
) -> None:
    layout = KairosDb(KairosDbOptions(row_spec=spec, retention=classes, retention_class=sum(classes)))
    wanted = Selection(metric, {key: frozenset(values) for key, values in tags.items()}, start, end)
    reader = plain.MemoryReader(rows_of(layout, points))
    if metric is not None and metric not in {series.metric for series, _, _ in points}:
        with pytest.raises(UnknownNameError, match=metric):
            list(layout.select(wanted, reader))
        return
    assert found(layout, reader, wanted) == {
        point for point in points if wanted.takes(point[0]) and start <= point[1] <= end
    }
    assert list(layout.audit(reader.table)) == []


def test_only_wanted_columns_are_read_and_neighbours_together() -> None:
    layout = KairosDb()
    points = [(series, time, 5) for series in SERIES for time in (3, WIDTH - 2, WIDTH, 2 * WIDTH + 3)]
    reader = plain.MemoryReader(rows_of(layout, points))
    wanted = Selection("cpu", {}, WIDTH - 2, 2 * WIDTH + 3)
    assert len(found(layout, reader, wanted)) == 9
    scans = [
        (scan.columns and (scan.columns.start.hex(), scan.columns.end.hex()), len(scan.ranges))
        for scan in reader.scans
    ]
    assert scans[2:] == [(("d84b17fc", "d84b1800"), 1), (None, 1), (("00000000", "00000008"), 1)]
    reader.scans.clear()
    assert len(found(layout, reader, Selection("cpu", {"host": frozenset({"a", "b"})}, 0, WIDTH - 1))) == 4
    assert len(reader.scans) == 4  # c stands between them


def test_a_float_of_a_row_without_type_at_the_end_of_the_range_is_found() -> None:
    layout = KairosDb()
    key = plain.row_key("cpu", 0, "kairos_legacy", {"host": "a"})
    data = Row("data_points", key, [Cell("d", b"\0\0\0\x0b", 1, b"\1\x3f\xc0\0\0")])
    entry = Row("row_keys", key, [Cell("k", b"", 0, b"")])
    names = Row("string_index", b"metric_names", [Cell("s", b"cpu", 0, b"\0")])
    reader = plain.MemoryReader([data, entry, names])
    assert found(layout, reader, Selection("cpu", {}, 5, 5)) == {(SERIES[0], 5, 1.5)}
    assert found(layout, reader, Selection("cpu", {}, 6, 9)) == set()


def test_a_row_between_neighbours_that_is_in_no_index_is_read_only_if_it_is_wanted() -> None:
    layout = KairosDb()
    a, b, c = (Series.of("cpu", {"host": host}) for host in "abc")
    rows = rows_of(layout, [(a, 5, 1), (c, 5, 3)])
    rows += [row for row in rows_of(layout, [(b, 5, 2)]) if row.table == "data_points"]
    reader = plain.MemoryReader(rows)
    assert found(layout, reader, Selection("cpu", {"host": frozenset("ac")}, 0, 9)) == {(a, 5, 1), (c, 5, 3)}
    assert found(layout, reader, Selection("cpu", {}, 0, 9)) == {(a, 5, 1), (b, 5, 2), (c, 5, 3)}


def test_seconds_are_found() -> None:
    layout = KairosDb(KairosDbOptions(row_spec=RowSpec.SECONDS))
    key = plain.row_key("cpu", 1_299_999_456_000, "kairos_long", {"host": "a"})
    data = Row("data_points", key, [Cell("d", bytes.fromhex("00000220"), 1, b"\2")])
    entry = Row("row_keys", key, [Cell("k", b"", 0, b"")])
    names = Row("string_index", b"metric_names", [Cell("s", b"cpu", 0, b"\0")])
    reader = plain.MemoryReader([data, entry, names])
    time = 1_300_000_000_000
    for start, end, points in (
        (time, time, 1),
        (time - 9, time + 999, 1),
        (time + 1, time + 9, 0),
        (0, time, 1),
    ):
        assert len(found(layout, reader, Selection("cpu", {}, start, end))) == points
    (selected,) = layout.select(Selection("cpu", {}, time, time), reader)
    assert isinstance(selected, Selected)
    assert not decode_row(layout, selected.row, selected.series).batch.in_ms.any()


def test_keys_that_cannot_be_read_are_findings() -> None:
    layout = KairosDb()
    rows = rows_of(layout, [(SERIES[0], 5, 1)])
    bad = b"cpu\0" + bytes(8) + b"\0\x0bkairos_longbad"
    between = plain.row_key("cpu", 0, "kairos_double", {"host": "a"})
    rows += rows_of(layout, [(SERIES[0], 5, 2.5)])
    rows.append(Row("row_keys", bad, [Cell("k", b"", 0, b"")]))
    rows.append(Row("data_points", between + b"bad", [Cell("d", bytes(4), 1, b"")]))
    rows.append(Row("row_keys", between + b"z=z:", [Cell("k", b"", 0, b"")]))
    answers = list(layout.select(Selection("cpu", {}, 0, 9), plain.MemoryReader(rows)))
    findings = [(one.severity, one.table, one.key) for one in answers if isinstance(one, Finding)]
    assert findings == [
        (Severity.CORRUPT, "row_keys", bad),
        (Severity.CORRUPT, "data_points", between + b"bad"),
    ]
    assert sum(isinstance(one, Selected) for one in answers) == 2


def test_index_entries_tell_series_row_time_and_type_apart() -> None:
    layout = KairosDb()
    points: list[tuple[Series, int, bool, Value]] = [
        (SERIES[0], 5, True, 1),
        (SERIES[0], 6, True, 2),
        (SERIES[0], 6, True, 2.5),
        (SERIES[1], WIDTH, True, "x"),
        (SERIES[1], -1, True, 1),
        (SERIES[1], 1, True, float("nan")),
    ]
    batch = PointBatch.of(points, 1)
    assert layout.index.entries(batch) == [(0, 0), (0, 1), (1, WIDTH + 2)]
    key = plain.row_key("cpu", WIDTH, "kairos_string", {"host": "b", "dc": "x"})
    assert layout.index.rows(SERIES[1], WIDTH + 2) == [
        Row("row_keys", key, [Cell("k", b"", WIDTH, b"")]),
        Row("string_index", b"metric_names", [Cell("s", b"cpu", 0, b"\0")]),
        Row("string_index", b"tag_names", [Cell("s", b"dc", 0, b"\0"), Cell("s", b"host", 0, b"\0")]),
        Row("string_index", b"tag_values", [Cell("s", b"b", 0, b"\0"), Cell("s", b"x", 0, b"\0")]),
    ]


def findings(rows: Sequence[Row]) -> list[tuple[str, str, bytes, str]]:
    """What an audit of some rows finds."""
    reader = plain.MemoryReader(rows)
    return [(one.severity.value, one.table, one.key, one.text) for one in KairosDb().audit(reader.table)]


def without(rows: Sequence[Row], table: str, key: bytes | None = None) -> list[Row]:
    return [row for row in rows if row.table != table or (key is not None and row.key != key)]


def test_the_audit_tells_what_is_missing() -> None:
    rows = rows_of(KairosDb(), [(SERIES[0], 5, 1), (SERIES[0], 6, 2.5)])
    first, second = (
        plain.row_key("cpu", 0, name, {"host": "a"}) for name in ("kairos_long", "kairos_double")
    )
    assert findings(rows) == []
    assert findings(without(rows, "row_keys", first)) == [
        ("corruption", "data_points", first, "not in row_keys: queries do not find it")
    ]
    assert findings(without(rows, "data_points", second)) == [
        (
            "note",
            "row_keys",
            second,
            "no data row has this key (its points have expired, or an ingest was interrupted)",
        )
    ]
    assert findings(without(rows, "string_index")) == [
        ("corruption", "data_points", first, "'cpu' is not in string_index under metric_names"),
        ("note", "data_points", first, "'host' is not in string_index under tag_names"),
        ("note", "data_points", first, "'a' is not in string_index under tag_values"),
    ]


def test_the_audit_tells_what_is_corrupt() -> None:
    rows = rows_of(KairosDb(), [(SERIES[0], 5, 1)])
    good = plain.row_key("cpu", 0, "kairos_long", {"host": "a"})
    odd = plain.row_key("cpu", 5, "kairos_long", {"host": "a"})
    early = plain.row_key("cpu", -2, "kairos_long", {"host": "a"})
    for key in (b"bad", odd, early):
        rows.append(Row("data_points", key, [Cell("d", bytes(4), 1, b"\2")]))
        rows.append(Row("row_keys", key, [Cell("k", b"", 0, b"")]))
    rows.append(Row("row_keys", b"worse", [Cell("k", b"", 0, b"")]))
    rows[0] = rows[0]._replace(cells=[Cell("d", bytes(4), 1, b"")])
    assert rows[0].key == good
    texts = {(key, text) for _, _, key, text in findings(rows)}
    assert texts == {
        (b"bad", f"row key {b'bad'.hex()} is not metric, 00, row time, type and tags"),
        (b"worse", f"row key {b'worse'.hex()} is not metric, 00, row time, type and tags"),
        (good, "column 00000000:  is not a value of the row's type"),
        (odd, "row time 5 does not fit row spec legacy"),
        (early, "times before 1970: queries do not find them"),
    }
