"""Points to fragments to cells and back, against a dictionary: the newest arrival of each instant wins."""

from __future__ import annotations

import dataclasses
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schema.stores import plain_kairosdb as plain
from tests.schema.stores.sent_batches import Sent, newest, sent_batches
from tests.support.decoded import decode_row
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.contract import pack_row
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rejections import Origins, Stage
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.stores.kairosdb import keys
from timebeam.schema.stores.kairosdb.layout import KairosDb
from timebeam.schema.stores.kairosdb.options import KairosDbOptions, RowSpec

Value = int | float | str

SERIES = [
    Series.of("cpu", {"host": "a"}),
    Series.of("cpu", {"ho:st": "b=:", "=": "😀"}),
    Series.of("mém", {"host": "a", "😀": "x", "～": "y"}),
]
WRITABLE = (RowSpec.LEGACY, RowSpec.MILLISECONDS)


class Put(NamedTuple):
    """One point of a batch."""

    series: int
    time_ms: int
    value: Value


def exact(value: Value) -> tuple[str, bytes]:
    """A value that tells 5 from 5.0 and 0.0 from -0.0."""
    return plain.value_bytes(value)


def _of_instants(sent: Sent[Put]) -> Sent[Put]:
    """A batch with the last value of the latest arrival of each instant."""
    last: dict[tuple[int, int], tuple[int, Put]] = {}
    for put, arrival in zip(sent.puts, sent.arrivals, strict=True):
        time = put.series, put.time_ms
        if arrival >= last.get(time, (arrival, put))[0]:
            last[time] = arrival, put
    return sent._replace(
        puts=[put for _, put in last.values()], arrivals=[arrival for arrival, _ in last.values()]
    )


def model(batches: Sequence[Sent[Put]], spec: RowSpec) -> dict[bytes, dict[bytes, tuple[int, bytes]]]:
    """{row key: {column: (arrival, value)}}; of each batch an instant has one value, whatever its kind."""
    batches = [_of_instants(sent) for sent in batches]

    def slot(put: Put) -> tuple[bytes, bytes]:
        series, (data_type, _) = SERIES[put.series], plain.value_bytes(put.value)
        key = plain.row_key(series.metric, plain.row_time(put.time_ms), data_type, dict(series.tags))
        return key, plain.column(put.time_ms, spec.value)

    rows: dict[bytes, dict[bytes, tuple[int, bytes]]] = defaultdict(dict)
    for (key, column), (arrival, put) in newest(batches, slot).items():
        rows[key][column] = arrival, plain.value_bytes(put.value)[1]
    return rows


def batch_of(sent: Sent[Put]) -> PointBatch:
    puts = [(SERIES[put.series], put.time_ms, True, put.value) for put in sent.puts]
    batch = PointBatch.of(puts, 0, sent.origins)
    return dataclasses.replace(batch, arrivals_ms=np.array(sent.arrivals, np.int64))


def pieces_of(layout: KairosDb, batches: Sequence[Sent[Put]]) -> dict[bytes, list[bytes]]:
    """The fragments of all batches by row."""
    rows = defaultdict(list)
    for sent in batches:
        batch = batch_of(sent)
        encoded = layout.encode(batch, [layout.series_key(series, {}) for series in batch.series])
        assert not encoded.rejected
        times = {(put.series, put.time_ms) for put in sent.puts}
        assert encoded.duplicates == len(sent.puts) - len(times)
        assert len({fragment.key for fragment in encoded.fragments}) == len(encoded.fragments)
        for fragment in encoded.fragments:
            assert fragment.table == "data_points"
            rows[fragment.key].append(fragment.packed)
    return rows


def packed(layout: KairosDb, rows: dict[bytes, list[bytes]]) -> dict[bytes, Row]:
    return {key: pack_row(layout, "data_points", key, parts, Packing.POINTS) for key, parts in rows.items()}


WIDTH = plain.WIDTH_MS
TIMES = (
    st.integers(0, keys.LAST_MS)
    | st.integers(WIDTH * 700 - 3, WIDTH * 700 + 3)
    | st.sampled_from([0, 1, WIDTH - 1, WIDTH, keys.LAST_MS])
)
LONGS = (
    st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-300, 300) | st.integers(0, 62).map(lambda k: 1 << k)
)
VALUES: st.SearchStrategy[Value] = (
    LONGS
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    | st.sampled_from(["", "\0", "é€😀\0", "x" * 40_000, -0.0])
)
PUTS = st.builds(Put, st.integers(0, 2), TIMES, VALUES)


@pytest.mark.parametrize("spec", WRITABLE)
@given(batches=sent_batches(PUTS), seed=st.integers(0, 1 << 32))
def test_what_is_stored_is_what_kairosdb_would_store(
    spec: RowSpec, batches: list[Sent[Put]], seed: int
) -> None:
    layout = KairosDb(KairosDbOptions(row_spec=spec))
    parts = pieces_of(layout, batches)
    rows = packed(layout, parts)
    expected = model(batches, spec)
    assert {
        key: {cell.qualifier: (cell.timestamp_ms, cell.value) for cell in row.cells}
        for key, row in rows.items()
    } == expected
    for key, row in rows.items():
        assert [cell.qualifier for cell in row.cells] == sorted(expected[key])
        random.Random(seed).shuffle(parts[key])
        assert pack_row(layout, "data_points", key, parts[key], Packing.POINTS) == row


@pytest.mark.parametrize("spec", WRITABLE)
@given(batches=sent_batches(PUTS))
def test_what_is_stored_is_read_back(spec: RowSpec, batches: list[Sent[Put]]) -> None:
    layout = KairosDb(KairosDbOptions(row_spec=spec))
    for key, row in packed(layout, pieces_of(layout, batches)).items():
        parts = plain.read_key(key)
        series = Series.of(parts.metric, parts.tags)
        assert series in SERIES
        decoded = decode_row(layout, row, series)
        assert (decoded.corruption, decoded.skipped) == ([], 0)
        found = [
            (plain.column(time, spec.value), arrival, exact(value))  # type: ignore[arg-type]
            for (_, time, value), arrival in zip(
                decoded.batch.points(), decoded.batch.arrivals_ms.tolist(), strict=True
            )
        ]
        assert found == [
            (cell.qualifier, cell.timestamp_ms, (parts.data_type, cell.value)) for cell in row.cells
        ]
        assert decoded.batch.in_ms.tolist() == [time % 1000 > 0 for time in decoded.batch.times_ms.tolist()]
        assert (np.diff(decoded.batch.times_ms) > 0).all()


def test_a_long_corrected_by_a_double_is_a_row_of_its_own_with_a_newer_cell() -> None:
    layout = KairosDb()
    rows = packed(layout, pieces_of(layout, [Sent([Put(0, 5, 1)], [1], 0), Sent([Put(0, 5, 1.5)], [2], 0)]))
    assert {plain.read_key(key).data_type: row.cells for key, row in rows.items()} == {
        "kairos_long": [Cell("d", b"\0\0\0\x0a", 1, b"\2")],
        "kairos_double": [Cell("d", b"\0\0\0\x0a", 2, bytes.fromhex("3ff8000000000000"))],
    }


def test_of_two_kinds_at_one_instant_the_later_line_of_a_block_is_stored() -> None:
    """Both were, in two rows with one timestamp, of which readers took the decimal."""
    layout = KairosDb()
    puts = [Put(0, 5, 1.5), Put(0, 5, 2), Put(0, 6, 1), Put(0, 6, 2.5), Put(0, 7, 1), Put(0, 7, "x")]
    batch = batch_of(Sent(puts, [1] * 6, 0))
    rows = packed(layout, pieces_of(layout, [Sent(puts, [1] * 6, 0)]))
    found = {
        (time_ms, value)
        for key, row in rows.items()
        for _, time_ms, value in decode_row(layout, row, SERIES[0]).batch.points()
    }
    assert found == {(5, 2), (6, 2.5), (7, "x")}
    assert [type(value) for _, value in sorted(found)] == [int, float, str]
    assert len(layout.index.entries(batch)) == 3
    assert len(layout.index.entries(batch.take(np.array([0, 1])))) == 1


def test_many_series_rows_and_arrivals_in_one_batch() -> None:
    layout = KairosDb()
    r = random.Random(1)
    values = (lambda: r.randrange(100), lambda: r.random(), lambda: "x" * r.randrange(4))
    far = keys.LAST_MS // WIDTH * WIDTH  # so many row times that rows are sorted by keys
    times = [r.choice((0, 700 * WIDTH, far)) + r.randrange(300) for _ in range(3_000)]
    puts = [Put(r.randrange(3), time, r.choice(values)()) for time in times]
    batches = [Sent(puts, [r.randrange(1 << 40) for _ in puts], 0)]
    rows = packed(layout, pieces_of(layout, batches))
    assert {
        key: {cell.qualifier: (cell.timestamp_ms, cell.value) for cell in row.cells}
        for key, row in rows.items()
    } == model(batches, RowSpec.LEGACY)
    for row in rows.values():
        assert [cell.qualifier for cell in row.cells] == sorted(cell.qualifier for cell in row.cells)


@pytest.mark.parametrize(
    ("time_ms", "value", "reason"),
    [
        (-1, 5, Reason.TIMESTAMP_OUT_OF_RANGE),
        (keys.LAST_MS + 1, 5, Reason.TIMESTAMP_OUT_OF_RANGE),
        (1, float("inf"), Reason.NUMBER_OUT_OF_RANGE),
        (1, float("nan"), Reason.NUMBER_OUT_OF_RANGE),
        (1, b"opaque", Reason.VALUE_NOT_STORABLE),
        (1, "\0" * 32_768, Reason.VALUE_NOT_STORABLE),
        (1, "😀" * 10_923, Reason.VALUE_NOT_STORABLE),
    ],
)
def test_points_that_cannot_be_stored_are_rejected(
    time_ms: int, value: float | bytes, reason: Reason
) -> None:
    layout = KairosDb()
    points = [(SERIES[0], 1, True, 1), (SERIES[0], time_ms, True, value), (SERIES[0], 3, True, 3)]
    origins = Origins(b"one,two,three", np.array([0, 4, 8]), np.array([3, 7, 13]), "f", 100)
    batch = PointBatch.of(points, 1, origins)
    encoded = layout.encode(batch, [layout.series_key(SERIES[0], {})])
    (rejected,) = encoded.rejected
    assert (rejected.payload, rejected.reason, rejected.stage) == (b"two", reason, Stage.ENCODE)
    assert (rejected.source, rejected.offset) == ("f", 104)
    (fragment,) = encoded.fragments
    row = pack_row(layout, fragment.table, fragment.key, [fragment.packed], Packing.POINTS)
    assert [value for _, _, value in decode_row(layout, row, SERIES[0]).batch.points()] == [1, 3]
    assert layout.index.entries(batch) == [(0, 0)]


def test_the_longest_strings_are_stored() -> None:
    layout = KairosDb()
    for text in ("x" * 65_535, "\0" * 32_767, "😀" * 10_922):
        encoded = layout.encode(
            PointBatch.of([(SERIES[0], 1, True, text)], 1), [layout.series_key(SERIES[0], {})]
        )
        (fragment,) = encoded.fragments
        row = pack_row(layout, fragment.table, fragment.key, [fragment.packed], Packing.POINTS)
        assert [value for _, _, value in decode_row(layout, row, SERIES[0]).batch.points()] == [text]


def test_an_empty_batch_has_no_pieces_and_no_entries() -> None:
    empty = PointBatch.of([], 1)
    encoded = KairosDb().encode(empty, [])
    assert (encoded.fragments, encoded.rejected, encoded.duplicates) == ([], [], 0)
    assert KairosDb().index.entries(empty) == []


@pytest.mark.parametrize(
    ("series", "reason"),
    [
        (Series.of("", {"a": "b"}), Reason.BAD_METRIC),
        (Series.of("a\0b", {"a": "b"}), Reason.BAD_METRIC),
        (Series.of("m", {}), Reason.NO_TAGS),
        (Series.of("m", {"": "b"}), Reason.BAD_TAG),
        (Series.of("m", {"a": ""}), Reason.BAD_TAG),
        (Series.of("m", {"a": "\ud800"}), Reason.BAD_ENCODING),
        (Series.of("m", {"a": "b"}, {"c": "d"}), Reason.SERIES_NOT_STORABLE),
        (Series.of("m", {"a": "x" * 4096}), Reason.OVER_BIGTABLE_LIMIT),
        (Series.of("m", {"a": "x" * 4069}), Reason.OVER_BIGTABLE_LIMIT),
    ],
)
def test_series_that_cannot_be_stored_are_rejected(series: Series, reason: Reason) -> None:
    rejected = KairosDb().reject(series)
    assert rejected is not None
    assert rejected.reason is reason


def test_the_longest_key_fits_bigtable() -> None:
    series = Series.of("m", {"a": "x" * 4068})
    assert KairosDb().reject(series) is None
    assert max(len(keys.row_key(keys.series_key(series), 0, kind)) for kind in (0, 1, 2)) == 4096


NAMES = st.text(
    st.sampled_from(":=a😀～\0") | st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6
)
METRICS = NAMES.map(lambda text: text.replace("\0", "-"))


@given(METRICS, st.dictionaries(NAMES, NAMES, min_size=1, max_size=4), st.integers(-(1 << 63), (1 << 63) - 1))
def test_any_names_survive_in_keys(metric: str, tags: dict[str, str], row_ms: int) -> None:
    series = Series.of(metric, tags)
    key = keys.row_key(keys.series_key(series), row_ms, 1)
    assert key == plain.row_key(metric, row_ms, "kairos_double", tags)
    assert keys.parse_key(key) == (row_ms, b"kairos_double", series)
    assert plain.read_key(key) == (metric, row_ms, "kairos_double", tags)


@given(st.binary(max_size=40), st.booleans())
def test_keys_that_are_none_are_told_so(raw: bytes, typed: bool) -> None:
    key = (plain.row_key("m", 0, "kairos_long", {}) if typed else b"") + raw
    try:
        parts = keys.parse_key(key)
    except ValueError:
        return
    data_type = "kairos_legacy" if parts.data_type is None else parts.data_type.decode()
    series = parts.series
    rebuilt = plain.row_key(series.metric, parts.row_ms, data_type, dict(series.tags))
    assert sorted(rebuilt) == sorted(key)  # tags in another order are tolerated


def test_corrupt_cells_are_told_and_the_others_read() -> None:
    layout = KairosDb()
    key = plain.row_key("cpu", 0, "kairos_long", {"host": "a"})
    bad = [b"", b"\x80", b"\x02\x02", b"\xff" * 11, b"\xff" * 9 + b"\x02", b"\x80\x00\x00"]
    cells = [
        Cell("d", (2 * i).to_bytes(4, "big"), 1, value)
        for i, value in enumerate([*bad, b"\x80\x00", b"\x02"])
    ]
    cells += [
        Cell("d", b"\0", 1, b"\x02"),
        Cell("x", b"\0\0\0\0", 1, b""),
        Cell("d7", b"\0\0\0\x0e", 2, b"\x04"),
    ]
    decoded = decode_row(layout, Row("data_points", key, cells), SERIES[0])
    assert list(decoded.batch.points()) == [(SERIES[0], 6, 0), (SERIES[0], 7, 2)]
    assert decoded.batch.arrivals_ms.tolist() == [1, 2]
    assert decoded.skipped == 1
    assert decoded.corruption == [
        "column 00: not 4 bytes",
        *(
            f"column {2 * i:08x}: {value[:16].hex()} is not a value of the row's type"
            for i, value in enumerate(bad)
        ),
    ]


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        ("kairos_double", b"1234567"),
        ("kairos_string", b"\0"),
        ("kairos_string", b"\0\2x"),
        ("kairos_string", b"\0\1\0"),
        ("kairos_string", b"\0\1\xff"),
        ("kairos_string", b"\0\3\xed\xa0\x80"),
        ("kairos_string", b"\0\4" + "😀".encode()),
        ("kairos_legacy", bytes(9)),
    ],
)
def test_values_that_are_none_of_the_type(data_type: str, value: bytes) -> None:
    key = plain.row_key("cpu", 0, data_type, {"host": "a"})
    decoded = decode_row(KairosDb(), Row("data_points", key, [Cell("d", bytes(4), 1, value)]), SERIES[0])
    assert len(decoded.batch) == 0
    assert decoded.corruption == [f"column 00000000: {value.hex()} is not a value of the row's type"]


def test_columns_of_another_row_spec_are_told() -> None:
    typed = plain.row_key("cpu", 0, "kairos_long", {"host": "a"})
    untyped = plain.row_key("cpu", 0, "kairos_legacy", {"host": "a"})
    for spec, key, column in (
        (RowSpec.LEGACY, typed, "00000001"),
        (RowSpec.LEGACY, typed, "d84b1800"),
        (RowSpec.MILLISECONDS, typed, "6c258c00"),
        (RowSpec.SECONDS, typed, "00000717"),
        (RowSpec.MILLISECONDS, untyped, "00000002"),
    ):
        layout = KairosDb(KairosDbOptions(row_spec=spec))
        decoded = decode_row(
            layout, Row("data_points", key, [Cell("d", bytes.fromhex(column), 1, b"\2")]), SERIES[0]
        )
        assert len(decoded.batch) == 0
        (text,) = decoded.corruption
        assert text.endswith(f"does not fit row spec {spec.value}: is row_spec that of the store?")


def test_a_row_whose_key_cannot_be_read_has_no_points() -> None:
    decoded = decode_row(KairosDb(), Row("data_points", b"cpu", [Cell("d", bytes(4), 1, b"\2")]), SERIES[0])
    assert (len(decoded.batch), len(decoded.corruption)) == (0, 1)


def test_options() -> None:
    layout = KairosDb(
        KairosDbOptions.of(
            {
                "table_prefix": "x-",
                "row_spec": "milliseconds",
                "retention": "7, 90",
                "retention_class": 90,
                "salt_width": 1,
            }
        )
    )
    assert layout == KairosDb(KairosDbOptions("x-", RowSpec.MILLISECONDS, (7, 90), 90))
    assert KairosDb(KairosDbOptions.of({"retention": ""})) == KairosDb()
    assert [
        (spec.name, dict(spec.families), spec.holds_points, spec.is_index) for spec in layout.tables()
    ] == [
        ("x-data_points", {"d": 1, "d7": 1, "d90": 1}, True, False),
        ("x-row_keys", {"k": 1}, False, True),
        ("x-string_index", {"s": 1}, False, True),
    ]
    assert (layout.uids, layout.writing.packings) == (None, (Packing.POINTS,))
    batch = PointBatch.of([(SERIES[0], 5, True, 1)], 1)
    (fragment,) = layout.encode(batch, [layout.series_key(SERIES[0], {})]).fragments
    row = pack_row(layout, fragment.table, fragment.key, [fragment.packed], Packing.POINTS)
    assert (row.table, row.cells[0].family) == ("x-data_points", "d90")


@pytest.mark.parametrize(
    "options",
    [
        {"row_spec": "x"},
        {"retention": "7,x"},
        {"retention": "7,7"},
        {"retention": "0"},
        {"retention_class": 7},
    ],
)
def test_options_that_make_no_sense(options: dict[str, object]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=name if name != "row_spec" else "x"):
        KairosDb(KairosDbOptions.of(options))


def test_seconds_are_for_reading_only() -> None:
    layout = KairosDb(KairosDbOptions(row_spec=RowSpec.SECONDS))
    with pytest.raises(ValueError, match="row_spec seconds"):
        layout.encode(PointBatch.of([(SERIES[0], 5, True, 1)], 1), [layout.series_key(SERIES[0], {})])
