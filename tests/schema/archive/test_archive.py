"""The cells and rows of the archive: vectors, every number bit for bit, limits, corruption, hostile bytes."""

from __future__ import annotations

import dataclasses
import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schema.archive.plain_archive import PlainPoint, cell_of, points_of
from timebeam.schema.archive import archive_cell, archive_rows
from timebeam.schema.archive.archive_cell import ArchiveError, DecimalForm, PartPlace, PartPoints
from timebeam.schema.archive.view import Archivable
from timebeam.schema.bits.arrays import Kind
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.core.selection import ArchiveRead, Selected
from timebeam.schema.stores import make_store
from timebeam.schema.stores.opentsdb.keys import row_key as data_row_key
from timebeam.schema.stores.opentsdb.keys import series_key
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions

VECTORS = Path(__file__).parents[2] / "golden" / "archive" / "vectors.json"
OPTIONS = OpenTsdbOptions()
SERIES = Series.of("m", {"k": "v"})
BASE_S = 1_699_488_000  # a multiple of every span but 5 days and 30 days
DAY_MS = 86_400_000


def archive_key(options: OpenTsdbOptions = OPTIONS, code: int = 3) -> bytes:
    head_tail = series_key(options, b"\0\0\1", [(b"\0\0\1", b"\0\0\2")])
    return archive_rows.archive_key(head_tail, BASE_S, code)


def batch_of(points: list[PlainPoint]) -> PointBatch:
    times, in_ms, is_float, bits, arrivals = zip(*points, strict=True) if points else ((),) * 5
    return PointBatch(
        (SERIES,),
        np.zeros(len(points), np.int32),
        np.array(times, np.int64),
        np.array(in_ms, np.bool_),
        np.array(is_float, np.uint8),
        np.array(bits, np.int64),
        np.array(arrivals, np.int64),
    )


def columns(batch: PointBatch) -> list[list[int]]:
    return [
        column.tolist()
        for column in (batch.times_ms, batch.in_ms, batch.kinds, batch.bits, batch.arrivals_ms)
    ]


def stored(points: list[PlainPoint], code: int = 3) -> Row:
    key = archive_key(code=code)
    return Row("archive", key, archive_rows.archive_cells(OPTIONS, key, batch_of(points)))


def read(row: Row, options: OpenTsdbOptions = OPTIONS) -> Any:
    return archive_rows.decode_archive_rows(options, [Selected(row, SERIES)])


def bits_of(number: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", number))[0])


def decoded_part(place: PartPlace, value: bytes) -> PartPoints:
    header = archive_cell.header_of(value)
    points = PartPoints.empty(header.points)
    archive_cell.decode_part(place, header, value, points)
    return points


ORDINARY: list[PlainPoint] = [(BASE_S * 1000 + 10_000 * i, False, False, i * i, 7) for i in range(50)]


def test_the_example_of_the_specification() -> None:
    text = (Path(__file__).parents[3] / "docs" / "spec" / "archive.md").read_text("utf-8")
    example = text.partition("\nExample: ")[2]
    key, qualifier = (bytes.fromhex(word) for word in example.split("`")[1:4:2])
    value = bytes.fromhex(example.split("```")[1])
    place = PartPlace(key, qualifier, 1_356_998_400_000, 3_600_000)
    points = decoded_part(place, value)
    assert points.times_ms.tolist() == [1_356_998_400_000, 1_356_998_410_000]
    assert points.bits.tolist() == [42, 43]
    assert not points.in_ms.any()
    assert not points.kinds.any()
    assert points.arrivals_ms.tolist() == [1_357_000_000_000] * 2
    assert archive_cell.encode_part(place, points)[:4] == value[:4]


@pytest.mark.parametrize("vector", json.loads(VECTORS.read_text()), ids=lambda vector: vector["name"])
def test_vectors_read_as_they_say_and_as_the_specification_says(vector: dict[str, Any]) -> None:
    options = OpenTsdbOptions(**vector["options"])
    key = bytes.fromhex(vector["key"])
    cells = [(bytes.fromhex(qualifier), bytes.fromhex(value)) for qualifier, value in vector["cells"]]
    expected = [tuple(point) for point in vector["points"]]
    base_at = options.salt_width + options.uid_width_metric + 1
    assert points_of(key, base_at, cells) == expected
    row = Row("archive", key, [Cell("t", qualifier, 0, value) for qualifier, value in cells])
    decoded = read(row, options)
    assert not decoded.corruption
    assert columns(decoded.batch) == columns(batch_of(expected))
    assert (
        points_of(
            key,
            base_at,
            [
                (cell.qualifier, cell.value)
                for cell in archive_rows.archive_cells(options, key, decoded.batch)
            ],
        )
        == expected
    )


INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
PLAIN_DECIMALS = st.integers(-10_000, 10_000).map(lambda number: bits_of(number / 100))
NARROW_DECIMALS = st.integers(1, 10_000).map(lambda number: bits_of(float(np.float32(number / 10))))
DOUBLES = st.one_of(
    INT64,  # any bits, NaN payloads included
    st.sampled_from([math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 5e-324, 1e308]).map(bits_of),
    PLAIN_DECIMALS,
)


@st.composite
def drawn_points(draw: st.DrawFn) -> list[PlainPoint]:
    offsets = draw(st.lists(st.integers(0, DAY_MS - 1), max_size=60, unique=True))
    arrivals = draw(st.sampled_from([st.just(7), st.integers(0, 1 << 45), st.integers(5, 9)]))
    doubles = draw(st.sampled_from([DOUBLES, PLAIN_DECIMALS, NARROW_DECIMALS]))
    are_lags = draw(st.booleans())
    points: list[PlainPoint] = []
    for offset in sorted(offsets):
        in_ms = draw(st.booleans()) or offset % 1000 != 0
        is_float = draw(st.booleans())
        bits = draw(doubles if is_float else INT64)
        time_ms = BASE_S * 1000 + offset
        points.append((time_ms, in_ms, is_float, bits, draw(arrivals) + are_lags * time_ms))
    return points


@given(drawn_points(), st.booleans())
def test_every_point_comes_back_bit_for_bit(points: list[PlainPoint], lags: bool) -> None:
    row = stored(points)
    decoded = read(row)
    assert not decoded.corruption
    assert columns(decoded.batch) == columns(batch_of(points))
    assert points_of(row.key, 4, [(cell.qualifier, cell.value) for cell in row.cells]) == points
    if points:  # what another writer makes of the specification reads the same
        decimals = archive_cell.header_of(row.cells[0].value).decimals
        plain = cell_of(row.key, 4, b"\0\0", points, lags=lags, decimals=decimals)
        assert columns(read(row._replace(cells=[Cell("t", b"\0\0", 0, plain)])).batch) == columns(
            batch_of(points)
        )


@pytest.mark.parametrize("number", [2.0**53 + 2, -(2.0**63), 1e22, math.inf, -math.nan, -0.0, 5e-324])
def test_numbers_without_a_numerator(number: float) -> None:
    """Those beyond 2**53 are no numerators, although they give the same floats."""
    forms = [DecimalForm(digits, is_narrow) for digits in range(15) for is_narrow in (False, True)]
    assert not [form for form in forms if form.numerators(np.array([1.0, number])) is not None]


def test_decimals_and_lags_are_stored_if_they_are_shorter() -> None:
    random = np.random.default_rng(5)
    n = 3000
    times_ms = BASE_S * 1000 + np.sort(random.choice(86_400, n, replace=False)) * 1000
    lags_ms, hours_ms = times_ms + random.integers(0, 100, n), times_ms // 3_600_000 * 3_600_000
    numerators = np.cumsum(random.integers(-20, 21, n)) + 5000
    odd = np.arange(n) == 7

    def forms(floats: Any, arrivals_ms: Any) -> tuple[Any, bool]:
        batch = dataclasses.replace(
            batch_of([ORDINARY[0]] * n),
            times_ms=times_ms,
            kinds=np.ones(n, np.uint8),
            bits=floats.view(np.int64),
            arrivals_ms=arrivals_ms,
        )
        (cell,) = archive_rows.archive_cells(OPTIONS, archive_key(), batch)
        assert columns(read(Row("archive", archive_key(), [cell])).batch) == columns(batch)
        header = archive_cell.header_of(cell.value)
        return header.decimals, header.time_form >= 16

    assert forms(numerators / 100, lags_ms) == ((2, False), True)
    assert forms((numerators / 10).astype(np.float32).astype(np.float64), hours_ms) == ((1, True), False)
    assert forms(numerators / 1, np.full(n, 7)) == ((0, False), False)
    assert forms(random.normal(50, 10, n), lags_ms) == (None, True)
    assert forms(np.where(odd, -0.0, numerators / 100), hours_ms) == (None, False)
    assert forms(np.where(odd, np.nan, numerators / 100), hours_ms) == (None, False)


def test_a_row_is_cut_into_parts_of_at_most_20_000_points_and_a_mebibyte() -> None:
    random = np.random.default_rng(3)
    n = 45_001
    bits = random.integers(-(1 << 63), (1 << 63) - 1, n)
    batch = dataclasses.replace(
        batch_of([ORDINARY[0]] * n),
        times_ms=BASE_S * 1000 + np.sort(random.choice(DAY_MS, n, replace=False)),
        in_ms=np.ones(n, np.bool_),
        kinds=random.integers(0, 2, n).astype(np.uint8),
        bits=bits,
        arrivals_ms=np.arange(n),
    )
    row = Row("archive", archive_key(), archive_rows.archive_cells(OPTIONS, archive_key(), batch))
    headers = [archive_cell.header_of(cell.value) for cell in row.cells]
    assert [cell.qualifier.hex() for cell in row.cells] == ["0000", "0001", "0002"]
    assert sum(header.points for header in headers) == n
    assert max(header.points for header in headers) <= 20_000
    assert max(len(cell.value) for cell in row.cells) <= 1 << 20
    assert [header.newest_ms for header in headers] == [14_999, 29_999, 45_000]
    assert read(row).batch.bits.tolist() == bits.tolist()
    start_ms = BASE_S * 1000
    key = archive_rows.parse_key(OPTIONS, row.key)
    first = archive_rows.within_parts(row, key, start_ms, start_ms + headers[0].last_ms)
    assert [cell.qualifier.hex() for cell in first.cells] == ["0000"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"times_ms": np.array([BASE_S * 1000, BASE_S * 1000])}, "ascend"),
        ({"times_ms": np.array([BASE_S * 1000 - 1000, BASE_S * 1000])}, "within the span"),
        ({"times_ms": np.array([BASE_S * 1000, BASE_S * 1000 + DAY_MS])}, "within the span"),
        ({"times_ms": np.array([BASE_S * 1000, BASE_S * 1000 + 1])}, "whole second"),
        ({"kinds": np.array([Kind.TEXT, Kind.TEXT], np.uint8)}, "numbers"),
    ],
)
def test_points_that_a_row_cannot_hold_are_rejected(change: dict[str, Any], message: str) -> None:
    batch = dataclasses.replace(batch_of(ORDINARY[:2]), **change)
    with pytest.raises(ValueError, match=message):
        archive_rows.archive_cells(OPTIONS, archive_key(), batch)


def corrupt(row: Row, position: int, byte: int) -> Row:
    value = bytearray(row.cells[0].value)
    value[position] = byte
    return row._replace(cells=[row.cells[0]._replace(value=bytes(value))])


def test_a_newer_version_is_rejected_politely_and_other_cells_are_read() -> None:
    random = np.random.default_rng(1)
    many = [(BASE_S * 1000 + 1000 * i, False, True, int(random.integers(1 << 60)), 7) for i in range(20_001)]
    row = stored(many)
    newer = row._replace(cells=[row.cells[0]._replace(value=b"\3" + row.cells[0].value[1:]), row.cells[1]])
    decoded = read(newer)
    assert len(decoded.batch) == archive_cell.header_of(row.cells[1].value).points
    [(_, text)] = decoded.corruption
    assert "version 3 with codec 1: this timebeam reads versions up to 2" in text
    assert "upgrade timebeam" in text


@pytest.mark.parametrize(
    ("position", "form"), [(2, 0x10), (2, 0x11), (3, 0x11), (3, 0x15), (3, 0x22), (3, 0xF5)]
)
def test_forms_of_version_2_are_corruption_in_version_1(position: int, form: int) -> None:
    value = stored(ORDINARY).cells[0].value
    for version in (1, 2):
        header = bytes((version, *value[1:4]))
        changed = header[:position] + bytes((form,)) + header[position + 1 :] + value[4:]
        if version == 2:
            assert archive_cell.header_of(changed).version == 2
        else:
            with pytest.raises(ArchiveError, match="corrupt header: forms of version 2 in version 1"):
                archive_cell.header_of(changed)
    assert archive_cell.header_of(b"\1" + value[1:2] + b"\2\2" + value[4:]).version == 1


def test_corruption_is_said_and_other_places_are_rejected() -> None:
    row = stored(ORDINARY)
    for position in range(8, len(row.cells[0].value)):
        decoded = read(corrupt(row, position, row.cells[0].value[position] ^ 0x10))
        assert len(decoded.batch) == 0
        assert len(decoded.corruption) == 1
    assert "checksum" in decoded.corruption[0][1]
    elsewhere = row._replace(key=archive_key(code=2))
    assert "checksum" in read(elsewhere).corruption[0][1]
    assert "span code 9" in read(row._replace(key=row.key[:3] + b"\x09" + row.key[4:])).corruption[0][1]
    assert (
        "not a multiple of its span"
        in read(row._replace(key=row.key[:7] + b"\1" + row.key[8:])).corruption[0][1]
    )
    twice = row._replace(cells=[row.cells[0], row.cells[0]])
    assert "overlap" in read(twice).corruption[0][1]


@given(
    st.binary(max_size=200),
    st.lists(st.tuples(st.integers(0, 199), st.integers(0, 255)), max_size=6),
    st.booleans(),
)
def test_hostile_bytes_never_crash_nor_bloat(
    raw: bytes, changes: list[tuple[int, int]], is_raw: bool
) -> None:
    value = bytearray(raw if is_raw else stored(ORDINARY).cells[0].value)
    for position, byte in changes:
        value[position % max(1, len(value)) : position % max(1, len(value)) + 1] = bytes((byte,))
    place = PartPlace(archive_key(), b"\0\0", BASE_S * 1000, DAY_MS)
    if len(value) >= 40:  # a writer of hostile bytes makes the checksum right
        value[4:8] = archive_cell._checksum(place, bytes(value)).to_bytes(4, "big")
    try:
        points = decoded_part(place, bytes(value))
    except ArchiveError:
        pass
    else:
        assert 0 < len(points.bits) <= 20_000
        assert (np.diff(points.times_ms) > 0).all()


@pytest.mark.parametrize(
    ("points", "hours", "code"),
    [(20_000, 1, 1), (5_000, 1, 2), (360, 1, 3), (60, 1, 4), (12, 1, 5), (1, 700, 5), (4_000_000, 1, 1)],
)
def test_the_span_goes_by_the_rate(points: int, hours: int, code: int) -> None:
    assert archive_rows.span_for(points, hours) == code


def test_ranges_have_the_keys_of_their_times_and_no_others() -> None:
    options = OpenTsdbOptions(salt_width=1, salt_buckets=2)
    start_ms, end_ms = BASE_S * 1000, BASE_S * 1000 + 3_600_000 - 1
    heads = (bytes((salt,)) + b"\0\0\1" for salt in range(2))
    ranges = [key_range for head in heads for key_range in archive_rows.ranges(head, start_ms, end_ms)]
    assert ranges == sorted(ranges)
    assert len(ranges) == 2 * len(archive_rows.SPANS_S)
    series = series_key(options, b"\0\0\1", [(b"\0\0\1", b"\0\0\2")])
    for code, span_s in archive_rows.SPANS_S.items():
        for base_s, is_inside in ((BASE_S, True), (BASE_S - span_s, False), (BASE_S + span_s, False)):
            key = archive_rows.archive_key(series, base_s, code)
            assert any(start <= key < end for start, end in ranges) is is_inside
    last = list(archive_rows.ranges(b"\0\0\1", 0, 1 << 50))
    key = archive_rows.archive_key(series_key(OPTIONS, b"\0\0\1", []), 0xFFFFFFFF, 1)
    assert sum(start <= key < end for start, end in last) == 1


@pytest.mark.parametrize("vector", json.loads(VECTORS.with_name("keys.json").read_text()))
def test_keys_of_other_layouts(vector: dict[str, Any]) -> None:
    options = {"retention": "", "archive": True, **vector["options"]}
    layout = make_store(vector["layout"], options)
    assert isinstance(layout, Archivable)
    archive = layout.archive_view
    series = Series.of(vector["metric"], vector["tags"], vector["resources"])
    key, data_key = bytes.fromhex(vector["key"]), bytes.fromhex(vector["data_key"])
    series_key, code, base_s = archive_rows.parse_key(archive.heads, key)
    assert series_key == layout.series_key(series, {}) == archive.data_row(data_key).series
    assert archive_rows.archive_key(series_key, vector["time"], code) == key
    assert (code, base_s) == (vector["span_code"], vector["time"] // 86_400 * 86_400)
    time_bytes = bytes((code,)) + base_s.to_bytes(4, "big")
    assert key == series_key.head + time_bytes + series_key.tail
    assert data_key.startswith(series_key.head)
    assert data_key.endswith(series_key.tail)
    assert layout.cut_at(key) == layout.cut_at(data_key) == layout.cut_at(series_key.head)
    with pytest.raises(ValueError, match="span code 9"):
        archive_rows.parse_key(archive.heads, series_key.head + b"\x09" + time_bytes[1:])
    with pytest.raises(ValueError, match="row key"):
        archive_rows.parse_key(archive.heads, key[: len(series_key.head) + 4])


def test_only_numbers_that_are_kept_forever_can_be_archived() -> None:
    heroic = make_store("heroic", {})
    kairosdb = make_store("kairosdb", {"retention": "7", "row_spec": "milliseconds"})
    assert isinstance(heroic, Archivable)
    assert isinstance(kairosdb, Archivable)
    row = heroic.archive_view.row_at(heroic.series_key(SERIES, {}), BASE_S)
    cells = [row.cells[0], row.cells[0]._replace(family="distributionPoints")]
    archivable, times_ms = heroic.archive_view.closed_cells(row._replace(cells=cells))
    assert (list(archivable), times_ms.tolist()) == (cells[:1], [BASE_S * 1000])
    key = kairosdb.series_key(SERIES, {})
    row = kairosdb.archive_view.row_at(key, BASE_S)
    cells = [row.cells[0], row.cells[0]._replace(family="d7"), row.cells[0]._replace(qualifier=b"?")]
    archivable, times_ms = kairosdb.archive_view.closed_cells(row._replace(cells=cells))
    assert (list(archivable), times_ms.tolist()) == ([cells[0], cells[2]], [BASE_S * 1000, -1])
    for kind in (b"kairos_string", b"histogram"):
        other = row.key.replace(b"\x0bkairos_long", bytes((len(kind),)) + kind)
        assert other != row.key
        assert not kairosdb.archive_view.closed_cells(row._replace(key=other))[0]
        assert kairosdb.archive_view.data_row(other).series == key


def test_of_equal_arrivals_the_later_kind_wins_where_kinds_are_in_different_rows() -> None:
    at = BASE_S * 1000
    integer, number = (batch_of([(at, False, is_float, 1, 100)]) for is_float in (False, True))
    for late, archived in ((integer, number), (number, integer)):
        points, from_source = archive_rows.merged(late, archived, by_kind=True)
        assert points.kinds.tolist() == [Kind.FLOAT]
        assert from_source.tolist() == [late is number]
    assert not archive_rows.merged(number, number, by_kind=True)[1].any()


def test_the_later_arrival_of_each_instant_wins() -> None:
    at = BASE_S * 1000
    archived = batch_of([(at, False, False, 1, 100), (at + 1000, False, False, 2, 5000)])
    late = batch_of(
        [(at, True, False, 10, 101), (at + 1000, False, False, 20, 5000), (at + 2000, False, False, 30, 1)]
    )
    points, from_source = archive_rows.merged(late, archived)
    assert [int(bits) for bits in points.bits] == [10, 2, 30]
    assert from_source.tolist() == [True, False, True]
    assert not archive_rows.merged(late.take(slice(1, 2)), archived)[1].any()


def test_late_rows_are_decoded_with_the_archive_and_rows_of_another_hour_are_told() -> None:
    layout = OpenTsdb(OpenTsdbOptions(archive=True))
    series = series_key(OPTIONS, b"\0\0\1", [(b"\0\0\1", b"\0\0\2")])
    key, next_key = (data_row_key(series, base_s) for base_s in (BASE_S, BASE_S + 3600))
    late = Row("tsdb", key, [Cell("t", b"\x00\x00", 8, b"\x05")])  # the first second, 5
    beyond = Row("tsdb", next_key, [Cell("t", b"\xe7\x40", 8, b"\x06")])  # 3700 s after its hour
    archived = Selected(stored(ORDINARY), SERIES, ArchiveRead([late, beyond]))
    decoded = layout.decode_rows([Selected(beyond, SERIES), archived, Selected(late, SERIES)])
    assert list(decoded.outside) == [0]
    assert [(row, text) for row, text in decoded.corruption] == [
        (beyond, "points of another hour than the row's")
    ]
    decoded = layout.decode_rows([archived])
    assert decoded.batch.bits.tolist() == [5, *(i * i for i in range(1, 50))]
    assert decoded.batch.arrivals_ms.tolist() == [8] + [7] * 49
    assert list(decoded.outside) == []
