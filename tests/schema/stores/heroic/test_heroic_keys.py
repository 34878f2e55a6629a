"""Row keys and qualifiers of both forms against plain loops; corrupt keys; ranges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schema.stores.plain_heroic import PERIOD, qualifier, readable_key, wire_key
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.points import Series
from timebeam.schema.stores.heroic.keys import KeyForm, ReadableKeys
from timebeam.schema.stores.heroic.layout import Heroic
from timebeam.schema.stores.heroic.options import HeroicReadableOptions
from timebeam.schema.stores.heroic.wire_key import WireKeys

WIRE, READABLE, NAMED = WireKeys(), ReadableKeys(), ReadableKeys(with_names=True)
FORMS = [pytest.param(form, id=name) for name, form in (("wire", WIRE), ("text", READABLE), ("names", NAMED))]
ODD = ",=\\x1f0129\x00\x01\n\x7f\x85\xa0%\uff5e\U0001f600é"
TEXT = st.text(st.sampled_from(ODD) | st.characters(exclude_categories=["Cs"]), max_size=6)
LONG = TEXT | st.integers(126, 300).map(lambda n: "x" * n)
MAPS = st.dictionaries(TEXT, LONG, max_size=4)
SERIES = st.builds(Series.of, LONG, MAPS, MAPS)
BASES = st.integers(0, (1 << 31) - 1).map(lambda n: n * PERIOD)
SEED = Series.of(
    "system",
    {
        "cpu-type": "idle",
        "site": "gew",
        "system-component": "cpu",
        "unit": "%",
        "what": "cpu-idle-percentage",
    },
    {"host": "database.example.com", "podname": "pod-example-123-abc"},
)


def plain_key(form: KeyForm, series: Series, base: int) -> bytes:
    if form is WIRE:
        return wire_key(series, base)
    return readable_key(series, base, names=form is NAMED)


def test_the_readable_key_of_the_seed_document() -> None:
    key = (
        b"system,cpu-type=idle,site=gew,system-component=cpu,unit=%,what=cpu-idle-percentage,"
        b"1297080123392,database.example.com,pod-example-123-abc"
    )
    assert READABLE.row_key(READABLE.series_key(SEED), 1297080123392) == key
    parts = READABLE.parse(key)
    assert (parts.series, parts.is_whole) == (SEED._replace(resources=()), False)
    assert (parts.base_ms, parts.head, parts.tail) == (1297080123392, *READABLE.series_key(SEED))
    named = NAMED.row_key(NAMED.series_key(SEED), 1297080123392)
    assert named.endswith(b",1297080123392,host=database.example.com,podname=pod-example-123-abc")
    assert NAMED.nameless_key(SEED) == READABLE.series_key(SEED)


@pytest.mark.parametrize(("offset", "text"), [(2919876608, b"2919876608"), (2920876608, b"2920876608")])
def test_the_readable_qualifiers_of_the_seed_document(offset: int, text: bytes) -> None:
    assert READABLE.qualifiers(np.array([offset], np.uint32)) == text


@pytest.mark.parametrize("form", FORMS)
@given(series=SERIES, base=BASES)
def test_a_key_is_written_and_read_back(form: KeyForm, series: Series, base: int) -> None:
    made = form.series_key(series)
    key = form.row_key(made, base)
    assert key == plain_key(form, series, base)
    parts = form.parse(key)
    assert (parts.base_ms, parts.head, parts.tail) == (base, *made)
    assert parts.is_whole == (form is not READABLE or not series.resources)
    assert parts.series == (series if parts.is_whole else series._replace(resources=()))


@pytest.mark.parametrize("form", FORMS)
@given(series=SERIES, base=BASES, data=st.data())
def test_a_corrupt_key_is_rejected_or_that_of_another_series(
    form: KeyForm, series: Series, base: int, data: st.DataObject
) -> None:
    key = form.row_key(form.series_key(series), base)
    at = data.draw(st.integers(0, len(key) - 1))
    change = data.draw(st.sampled_from(["cut", "drop", "flip", "insert"]))
    if change == "cut":
        corrupt = key[:at]
    elif change == "drop":
        corrupt = key[:at] + key[at + 1 :]
    elif change == "flip":
        corrupt = key[:at] + bytes([key[at] ^ data.draw(st.integers(1, 255))]) + key[at + 1 :]
    else:
        corrupt = key[:at] + data.draw(st.binary(min_size=1, max_size=1)) + key[at:]
    try:
        parts = form.parse(corrupt)
    except ValueError:
        return
    assert parts.head + form.base_text(parts.base_ms) + parts.tail == corrupt
    if parts.is_whole and form is not READABLE:
        written = WIRE if form is WIRE else (NAMED if parts.series.resources else READABLE)
        assert written.row_key(written.series_key(parts.series), parts.base_ms) == corrupt


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("", "ends inside a length"),
        ("0161", "ends inside a string"),  # claims more bytes than there are
        ("0101ff000000000000000000", "not UTF-8"),
        ("01026100" + "00" * 8, "with other bytes"),  # a has one UTF-16 unit
        ("01016100" + "00" * 7, "ends inside the base"),
        ("01016100" + "0000000100000001", "not a 64-bit multiple"),
        ("01016100" + "00" * 8 + "00", "after the base are not resources"),
        ("01016100" + "00" * 8 + "01000100", "with other bytes"),  # no resources, yet a suffix
        ("01016100" + "00" * 8 + "010005010161", "where their length says 5"),
        ("01016102" + "010162010163" + "010161010163" + "00" * 8, "with other bytes"),  # wrong order
        ("01016102" + "010161010163" * 2 + "00" * 8, "with other bytes"),  # a tag twice
    ],
)
def test_keys_that_heroic_does_not_write(key: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        WIRE.parse(bytes.fromhex(key))


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (b"", "not metric, tags and base"),
        (b"m", "not metric, tags and base"),
        (b"m,k=v", "not metric, tags and base"),
        (b"m=1,0", "not metric, tags and base"),
        (b"m,1", "multiple"),
        (b"m,-4294967296", "is not a number"),
        (b"m,00", "with other bytes"),
        (b"m,18446744073709551616", "64-bit multiple"),
        (b"m,b=1,a=1,0", "with other bytes"),
        (b"m,a=1,a=2,0", "with other bytes"),
        (b"m,a=b=c,0", "surplus = or backslash"),
        (b"m\\,0", "not metric, tags and base"),
        (b"m\\", "surplus = or backslash"),
        (b"m\\x41,0", "with other bytes"),
        (b"m\n,0", "with other bytes"),
        (b"m,0,host=a,b", "with other bytes"),
        (b"m\xff,0", "not UTF-8"),
    ],
)
def test_keys_that_the_readable_layout_does_not_write(key: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        READABLE.parse(key)


@pytest.mark.parametrize("form", [WIRE, READABLE])
@given(
    st.lists(st.tuples(SERIES, st.integers(0, 12).map(lambda n: n * PERIOD)), max_size=6),
    SERIES,
    st.integers(0, 9),
    st.integers(0, 3),
)
def test_ranges_hold_the_rows_of_a_series_with_any_resources_and_no_others(
    form: KeyForm, others: list[tuple[Series, int]], series: Series, first: int, more: int
) -> None:
    low, high = first * PERIOD, (first + more) * PERIOD
    ranges = list(form.ranges(form.series_key(series).head, low, high))
    bases = [max(0, low - PERIOD), low, high, high + PERIOD, low * 10]
    rows = others + [(series, base) for base in bases] + [(series._replace(resources=()), low)]
    for other, base in rows:
        key = form.row_key(form.series_key(other), base)
        wanted = other[:2] == series[:2] and low <= base <= high
        assert sum(start <= key < end for start, end in ranges) == wanted


def test_names_that_look_like_bases_are_in_no_range() -> None:
    ranges = list(READABLE.ranges(b"m,", 0, PERIOD))
    assert ranges == [
        (b"m,0", b"m,0\x00"),
        (b"m,0,", b"m,0-"),
        (b"m,4294967296", b"m,4294967296\x00"),
        (b"m,4294967296,", b"m,4294967296-"),
    ]
    for name in ("0", "0!", "0-", "0.", "00", "4294967296-", "42949672960"):
        key = READABLE.row_key(READABLE.series_key(Series.of("m", {name: "v"})), 0)
        assert not any(start <= key < end for start, end in ranges), name


@pytest.mark.parametrize(("form", "name"), [(WIRE, "heroic"), (READABLE, "heroic-readable")])
@given(st.lists(st.integers(0, PERIOD - 1), min_size=1))
def test_qualifiers_are_in_the_order_of_time_and_read_back(
    form: KeyForm, name: str, offsets: list[int]
) -> None:
    raw = form.qualifiers(np.array(offsets, np.uint32))
    assert raw == b"".join(qualifier(name, offset) for offset in offsets)
    assert form.offsets(raw).tolist() == offsets
    width = form.qualifier_bytes
    cut = [raw[i : i + width] for i in range(0, len(raw), width)]
    assert [qualifier for _, qualifier in sorted(zip(offsets, cut, strict=True))] == sorted(cut)


def test_qualifiers_that_are_no_offsets() -> None:
    assert READABLE.offsets(b"00000000014294967296000000000 -000000001").tolist() == [1, -1, -1, -1]


@pytest.mark.parametrize("layout", [Heroic(), Heroic(HeroicReadableOptions())])
def test_series_that_cannot_be_stored(layout: Heroic) -> None:
    assert layout.reject(SEED) is None
    assert layout.reject(Series.of("", {})) is None
    rejected = layout.reject(Series.of("m", {"a": "\ud800"}))
    assert rejected is not None
    assert rejected.reason is Reason.NAME_NOT_STORABLE
    for series in (Series.of("x" * 4000, {}), Series.of("m", {"a": "\x01" * 2100})):
        rejected = layout.reject(series)
        assert rejected is not None
        assert rejected.reason is Reason.SERIES_NOT_STORABLE


def test_the_readable_layout_rejects_by_its_own_key() -> None:
    layout = Heroic(HeroicReadableOptions())
    taken = 4000 - 1 - len(",") - len(str((1 << 63) - PERIOD))
    assert layout.reject(Series.of("x" * taken, {})) is None
    assert layout.reject(Series.of("x" * (taken + 1), {})) is not None
