"""Reading rows: every mixture of columns against plain loops, and corruption that must not raise."""

from __future__ import annotations

import math
import struct
from random import Random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.schema.stores import plain_opentsdb as plain
from tests.support.budget import examples
from tests.support.decoded import decode_row
from tests.support.inputs.opentsdb_columns import columns, elements, qualifier_of
from timebeam.schema.core.points import Series
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.stores.opentsdb.columns import point_elements as el
from timebeam.schema.stores.opentsdb.columns.decode_row import RowColumns, read_column, read_row
from timebeam.schema.stores.opentsdb.layout import OpenTsdb

KEY = bytes.fromhex("00000150e22700000001000001")
SERIES = Series.of("m", {"host": "a"})


def listed(elements: el.Elements) -> list[plain.Element]:
    """Elements in the form of the plain model."""
    columns = (elements.offsets_ms, elements.in_ms, elements.codes, elements.raws, elements.widths)
    return [
        plain.Element(offset, in_ms, code & 15, raw.to_bytes(8, "big")[8 - width :])
        for offset, in_ms, code, raw, width in zip(*(c.tolist() for c in columns), strict=True)
    ]


ROWS = st.lists(st.tuples(st.integers(0, 3), columns()), max_size=6, unique_by=lambda cell: cell[1][0])


@given(ROWS, st.randoms())
@examples(300)
def test_any_mixture_of_columns_is_merged(row: list[tuple[int, tuple[bytes, bytes]]], order: Random) -> None:
    cells = [Cell("t", qualifier, timestamp, value) for timestamp, (qualifier, value) in row]
    expected = plain.read_row((cell.timestamp_ms, cell.qualifier, cell.value) for cell in cells)
    order.shuffle(cells)
    content = read_row(cells)
    assert (content.corruption, content.skipped) == ([], 0)
    timestamps = [content.cells[number].timestamp_ms for number in content.column.tolist()]
    found = list(zip(timestamps, listed(content.elements), strict=True))
    assert found == [expected[offset] for offset in sorted(expected)]


def test_the_cell_timestamps_are_the_arrivals() -> None:
    cells = [
        Cell("t", b"\x00\x00\x00\x10", 7, b"\x01\x02\x00"),
        Cell("t", b"\x00\x10", 9, b"\x03"),
        Cell("t", b"\x05\x00\x00", 8, b"\x00\x00\x04\x00\x20\x05"),
    ]
    batch = decode_row(OpenTsdb(), Row("tsdb", KEY, cells), SERIES).batch
    assert [value for _, _, value in batch.points()] == [4, 3, 5]
    assert batch.arrivals_ms.tolist() == [8, 9, 8]
    assert batch.times_ms.tolist() == [1_356_998_400_000, 1_356_998_401_000, 1_356_998_402_000]


@given(st.lists(elements(flags=range(16)), min_size=1, max_size=20))
def test_qualifiers_are_split_as_one_by_one(points: list[plain.Element]) -> None:
    joined = b"".join(map(qualifier_of, points))
    codes = el.split_qualifiers(joined)
    assert b"".join(struct.pack(">I" if code >> 28 else ">H", code) for code in codes.tolist()) == joined
    assert len(codes) == len(points)


HALVES = st.sampled_from((0x0000, 0x0FFF, 0xE0F0, 0xEFFF, 0xF000, 0xF001, 0xFFFF)) | st.integers(0, 0xFFFF)


@given(st.lists(HALVES, max_size=24))
@examples(400)
def test_any_halves_are_split_as_one_by_one(halves: list[int]) -> None:
    data = struct.pack(f">{len(halves)}H", *halves)
    try:
        expected = plain.split_qualifiers(data)
    except plain.CorruptBytesError:
        with pytest.raises(el.CorruptError):
            el.split_qualifiers(data)
        return
    codes = el.split_qualifiers(data)
    found = listed(el.Elements(codes, np.zeros(len(codes), np.uint64)))
    assert [element._replace(value=b"") for element in found] == expected


@given(
    st.binary(max_size=40)
    | st.lists(elements(), max_size=8).map(lambda points: b"".join(map(qualifier_of, points))),
    st.binary(max_size=64),
)
@examples(400)
@example(b"\xf0\x00", b"\x01")
@example(b"", b"")
def test_any_column_is_split_as_one_by_one_or_corrupt(qualifiers: bytes, value: bytes) -> None:
    try:
        expected = plain.split_column(qualifiers, value)
    except plain.CorruptBytesError:
        with pytest.raises(el.CorruptError):
            el.split_columns(qualifiers, value)
    else:
        assert listed(el.split_columns(qualifiers, value)) == expected


@given(
    st.binary(max_size=40)
    | st.lists(
        st.sampled_from((b"\xf0\x00\x00\x00\x01", b"\x00\x10\x02", b"\x00\x21\x03\x04")), max_size=8
    ).map(b"".join)
)
@examples(400)
@example(b"\xf0\x00\x00")
@example(b"\xf0")
@example(b"\x00")
def test_any_append_column_is_split_as_one_by_one_or_corrupt(value: bytes) -> None:
    try:
        expected = plain.split_append(value)
    except plain.CorruptBytesError:
        with pytest.raises(el.CorruptError):
            el.split_append(value)
    else:
        assert listed(el.split_append(value)) == expected


@given(st.lists(elements(), max_size=20))
def test_elements_are_written_as_they_are_read(points: list[plain.Element]) -> None:
    appended = b"".join(qualifier_of(point) + point.value for point in points)
    found = el.split_append(appended)
    assert listed(found) == points
    assert el.append_bytes(found) == appended
    qualifiers, qualifier_starts = el.qualifier_bytes(found.codes)
    values, value_starts = el.value_bytes(found)
    assert qualifiers == b"".join(map(qualifier_of, points))
    assert values == b"".join(point.value for point in points)
    assert qualifier_starts.tolist() == [
        sum(4 if p.in_ms else 2 for p in points[:i]) for i in range(len(points) + 1)
    ]
    assert value_starts.tolist() == [sum(len(p.value) for p in points[:i]) for i in range(len(points) + 1)]


@given(st.lists(elements(flags=range(16)), min_size=1, max_size=20))
def test_values_are_the_numbers_of_their_bytes(points: list[plain.Element]) -> None:
    found = el.split_append(b"".join(qualifier_of(point) + point.value for point in points))
    bits, kinds, good = found.values()
    for point, number, kind, fine in zip(points, bits.tolist(), kinds.tolist(), good.tolist(), strict=True):
        expected = plain.read_value(point.flags, point.value)
        assert fine == (expected is not None)
        if expected is None:
            continue
        assert kind == (expected[0] == "float")
        if kind == 0:
            assert number == expected[1]
        elif not math.isnan(struct.unpack(">d", expected[1])[0]):
            assert struct.pack(">q", number) == expected[1]
        else:  # a NaN may change its payload when it is widened
            assert math.isnan(struct.unpack(">d", struct.pack(">q", number))[0])


def test_a_length_that_no_number_has_is_corruption_and_the_rest_is_read() -> None:
    row = [Cell("t", b"\x00\x02\x00\x10\x00\x29", 1, b"\x00\x00\x01" + b"\x05" + b"\x00\x00" + b"\x00")]
    decoded = decode_row(OpenTsdb(), Row("tsdb", KEY, row), SERIES)
    assert [value for _, _, value in decoded.batch.points()] == [5]
    assert decoded.corruption == [
        "values with flags 2: no number has this type and length",
        "values with flags 9: no number has this type and length",
    ]


BYTES = st.binary(max_size=12)
CELLS = st.builds(
    lambda q, t, v: Cell("t", q, t, v), BYTES, st.integers(-5, 5), BYTES | st.binary(max_size=80)
)


@given(st.lists(CELLS, max_size=8))
@examples(500)
@example([])
@example([Cell("t", b"\x05\x00\x00", 0, b"\xf0\x00\x00")])
def test_no_bytes_make_reading_raise(cells: list[Cell]) -> None:
    content = read_row(cells)
    offsets = content.elements.offsets_ms.tolist()
    assert offsets == sorted(set(offsets))
    assert len(content.column) == len(offsets)
    decoded = decode_row(OpenTsdb(), Row("tsdb", KEY, cells), SERIES)
    assert len(decoded.batch) == len(offsets)
    assert decoded.batch.times_ms.tolist() == [1_356_998_400_000 + offset for offset in offsets]


@pytest.mark.parametrize(
    ("qualifier", "value", "why"),
    [
        ("", "01", "empty qualifier"),
        ("00", "01", "no column has"),
        ("0500", "", "a value of 0 bytes"),
        ("0510", "01" * 9, "a value of 9 bytes"),
        ("0500000000", "01", "no column has"),
        ("01000000000000", "01", "no column has"),
        ("f000", "01", "cut in half"),
        ("f0000000", "0100", "2 bytes where the qualifier says 1"),
        ("00000010", "01", "1 bytes where the qualifiers say 2 or one more"),
        ("00000010", "01020304", "4 bytes where the qualifiers say 2 or one more"),
        ("050000", "00", "ends inside an element"),
        ("000b", "0000000100000000", "Corrupted floating point value"),
    ],
)
def test_columns_that_are_corrupt(qualifier: str, value: str, why: str) -> None:
    cells = [Cell("t", bytes.fromhex(qualifier), 1, bytes.fromhex(value)), Cell("t", b"\x0f\x00", 1, b"\x07")]
    content = read_row(cells)
    (corruption,) = content.corruption
    assert corruption.startswith(f"column {qualifier}: ")
    assert why in corruption
    assert [element.value for element in listed(content.elements)] == [b"\x07"]


@pytest.mark.parametrize("qualifier", ["010000", "0100000000", "060007", "06002719c4"])
def test_annotations_and_histograms_are_passed_over(qualifier: str) -> None:
    assert read_column(bytes.fromhex(qualifier), b"{}") is None
    content: RowColumns = read_row([Cell("t", bytes.fromhex(qualifier), 1, b"{}")] * 2)
    assert (len(content.elements), content.skipped, content.corruption) == (0, 2, [])


@pytest.mark.parametrize("qualifier", ["01000110", "06000610"])
def test_even_qualifiers_that_start_like_others_are_points(qualifier: str) -> None:
    content = read_row([Cell("t", bytes.fromhex(qualifier), 1, b"\x01\x02\x00")])
    assert [element.value for element in listed(content.elements)] == [b"\x01", b"\x02"]
    assert (content.corruption, content.skipped) == ([], 0)


@pytest.mark.parametrize("second", range(80, 96))
def test_plain_points_whose_qualifier_looks_like_an_append_column(second: int) -> None:
    (element,) = listed(read_row([Cell("t", struct.pack(">H", second << 4), 1, b"\x2a")]).elements)
    assert element == plain.Element(second * 1000, False, 0, b"\x2a")


@pytest.mark.parametrize(
    ("qualifier", "value", "expected"),
    [
        ("000b", "00000000422a0000", ("000b", "422a0000")),  # float32 on eight bytes
        ("0003", "0000000000000004", ("0007", "0000000000000004")),  # wrong length in the flags
        ("0007", "04", ("0000", "04")),
        ("000f", "422a0000", ("000b", "422a0000")),
        ("000b", "422a0000", ("000b", "422a0000")),
    ],
)
def test_mistakes_of_old_tsds_are_put_right(qualifier: str, value: str, expected: tuple[str, str]) -> None:
    found = read_column(bytes.fromhex(qualifier), bytes.fromhex(value))
    assert found is not None
    assert (el.qualifier_bytes(found.codes)[0].hex(), el.value_bytes(found)[0].hex()) == expected
