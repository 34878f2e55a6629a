"""Format `prometheus-remote-write`: requests that protobuf's library encodes, hostile and several ones."""

from __future__ import annotations

import gzip
import itertools
import struct
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import zstandard
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from tests.support.inputs.prometheus_proto import ENCODERS, Labels, Plain, request_1, request_2, snappy
from tests.support.inputs.prometheus_proto import message as proto
from tests.support.rejections import rejected_point
from timebeam.schema.bits import protobuf_columns
from timebeam.schema.bits.arrays import Kind
from timebeam.schema.bits.compression import snappy as unpack_snappy
from timebeam.schema.bits.protobuf_columns import Fields
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.points import Series
from timebeam.schema.core.rejections import Envelope, Stage
from timebeam.schema.formats import Framing, Message, whole_format
from timebeam.schema.formats.base import Parsed
from timebeam.schema.formats.options import FormatOptions
from timebeam.schema.formats.prometheus import remote_write
from timebeam.schema.formats.prometheus.plain_series import PlainSeries
from timebeam.schema.formats.prometheus.remote_write import RemoteWrite

TIME = 1_700_000_000_000
STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]

versions = pytest.mark.parametrize("version", [1, 2])


PACKINGS = {
    "snappy": snappy,
    "zstd": zstandard.compress,
    "gzip": gzip.compress,
    "nothing": lambda request: request,
}


@pytest.fixture(scope="module", params=[2, 128], autouse=True)
def together(request: pytest.FixtureRequest) -> Iterator[None]:
    """Messages of one level are read together from the second on, and one by one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protobuf_columns, "_TOGETHER", request.param)
        yield


def parse(text: bytes) -> Parsed:
    return RemoteWrite().parse(Message(text, 5, "topic"))


def expected(series: Plain) -> list[tuple[Series, int, float]]:
    """The points of a request, read without columns."""
    points = []
    for labels, samples in series:
        tags = {name: value for name, value in labels.items() if value and name != "__name__"}
        points += [(Series.of(labels["__name__"], tags), time, value) for value, time in samples]
    return points


NODE: Plain = [
    (
        {
            "__name__": f"node:cpu_{n % 3}",
            "instance": "web01:9100",
            "mode": f"m{n}",
            "zone": "é",
            "empty": "",
        },
        [(n * 1.5, TIME + n), (0.0, TIME + 15_000), (-1e300, TIME + 30_000)][: 1 + n % 3],
    )
    for n in range(100)
]


def test_the_example() -> None:
    (point,) = parse(RemoteWrite.example).batch.points()
    assert point == (Series.of("memory", {"host": "web01"}), 1_356_998_400_000, 42.5)


@versions
@pytest.mark.parametrize("packing", PACKINGS)
def test_requests_of_another_encoder(version: int, packing: str) -> None:
    parsed = parse(PACKINGS[packing](ENCODERS[version](NODE)))
    assert list(parsed.batch.points()) == expected(NODE)
    assert not parsed.rejected
    assert set(parsed.batch.kinds) == {Kind.FLOAT}
    assert parsed.batch.in_ms.all()
    assert RemoteWrite.framing is Framing.PROTOBUF


names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=5)
values = st.floats(allow_nan=False, allow_infinity=False)
times = st.integers(1 << 32, (1 << 32) * 1000 - 1)
plain_series = st.tuples(
    st.dictionaries(names, names, max_size=4).map(lambda tags: {"__name__": "m"} | tags),
    st.lists(st.tuples(values, times), max_size=3),
)


@versions
@given(series=st.lists(plain_series, max_size=40))
def test_any_request(version: int, series: Plain) -> None:
    parsed = parse(snappy(ENCODERS[version](series)))
    assert [(repr(point)) for point in parsed.batch.points()] == [repr(point) for point in expected(series)]
    assert not parsed.rejected


def outcome(parsed: Parsed) -> tuple[list[str], list[object], object]:
    """The points, rejections and counts of what was read."""
    assert parsed.batch.origins is not None
    spans = zip(parsed.batch.origins.starts.tolist(), parsed.batch.origins.ends.tolist(), strict=True)
    points = list(map(repr, zip(parsed.batch.points(), spans, strict=True)))
    return points, list(parsed.rejected), +Counter(parsed.skipped)


one_sample = st.tuples(
    st.dictionaries(names, names, max_size=4).map(lambda tags: {"__name__": "m"} | tags),
    st.tuples(st.floats() | st.just(STALE), times | st.integers(-(1 << 63), (1 << 63) - 1)).map(
        lambda sample: [sample]
    ),
)


@given(
    series=st.lists(one_sample | plain_series, max_size=20),
    corruption=st.lists(st.tuples(st.integers(0, 999), st.integers(0, 255)), max_size=2),
)
def test_known_series_are_read_as_others_are(series: Plain, corruption: list[tuple[int, int]]) -> None:
    """Also beside requests that are corrupt, and where a quick look counts the points."""
    intact = request_1(series)
    corrupt = bytearray(intact)
    for position, byte in corruption:
        corrupt[position % max(len(corrupt), 1) : position % max(len(corrupt), 1) + 1] = bytes([byte])
    none = np.zeros(0, np.int64)
    no_series = PlainSeries(Fields(none, none, none, none, none), none)
    form = RemoteWrite()
    form.parse(Message(intact, 5))
    for request in (intact, bytes(corrupt), intact[:-1]):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(remote_write, "plain_requests", lambda *_: None)
            patch.setattr(remote_write, "plain_series", lambda text, series: (no_series, none))
            scanned = RemoteWrite().parse(Message(request, 5))
            (both,) = RemoteWrite().parse_all([Message(intact, 5), Message(request, 6), Message(b"", 7)])
        assert outcome(form.parse(Message(request, 5))) == outcome(scanned)
        (known,) = form.parse_all([Message(intact, 5), Message(request, 6), Message(b"", 7)])
        assert outcome(known) == outcome(both)
        good = form.good_points(snappy(request))
        assert good is None or (good, [], {}) == (
            len(scanned.batch),
            scanned.rejected,
            +Counter(scanned.skipped),
        )


def test_a_quick_look_counts_samples_of_known_series() -> None:
    form, series = RemoteWrite(), [(labels, samples[:1]) for labels, samples in NODE]
    request = snappy(request_1(series))
    assert form.good_points(request) is None
    form.parse(Message(request, 5))
    assert form.good_points(request) == len(NODE)
    for labels, value, time, _ in BAD.values():
        form.parse(Message(request_1([(labels, [(1.0, TIME)])]), 5))
        assert form.good_points(snappy(request_1([*series, (labels, [(value, time)])]))) is None
    assert form.good_points(snappy(request_1([*series, (NODE[0][0], [(STALE, TIME)])]))) is None
    for other in (b"", request[:-1], request_1(series), snappy(request_2(series)), snappy(b"")):
        assert form.good_points(other) is None


@pytest.mark.parametrize(
    "end",
    ["10858585858501", "10051005108501", "0d858585850801", "10858585858585"],
    ids=["a time", "three times", "no time", "a time that goes on"],
)
def test_samples_of_the_usual_size(end: str) -> None:
    form, series = RemoteWrite(), request_1([(NODE[0][0], [(1.5, TIME)])])
    form.parse(Message(series, 5))
    text = series[:-7] + bytes.fromhex(end)
    assert outcome(form.parse(Message(text, 5))) == outcome(RemoteWrite().parse(Message(text, 5)))


def test_labels_are_not_taken_for_symbols_of_version_2() -> None:
    """The bytes of the numbers of symbols, where a request of version 1.0 has its labels."""
    form, one = RemoteWrite(), [({"__name__": "m"}, [(1.0, TIME)])]
    assert len(form.parse(Message(request_2(one), 5)).batch) == 1
    sample = request_1([({}, [(1.0, TIME)])])[2:]
    for first, second in itertools.product(range(5), repeat=2):
        series = struct.pack("<2Q", first, second) + sample
        request = b"\n" + bytes([len(series)]) + series
        assert form.good_points(snappy(request)) is None
        assert outcome(form.parse(Message(request, 5))) == outcome(RemoteWrite().parse(Message(request, 5)))


@versions
def test_the_same_series_again(version: int) -> None:
    form, request = RemoteWrite(FormatOptions(remembered=3)), Message(snappy(ENCODERS[version](NODE)), 5)
    for _ in range(3):
        batch = form.parse(request).batch
        assert list(batch.points()) == expected(NODE)
        assert len(set(batch.series)) == len(batch.series)
    twice = [NODE[0], NODE[1], NODE[0], ({**NODE[0][0], "zone": "x"}, [(1.0, TIME)])]
    batch = form.parse(Message(ENCODERS[version](twice), 5)).batch
    assert list(batch.points()) == expected(twice)
    assert len(batch.series) == 3


@versions
def test_stale_markers_are_skipped_and_counted(version: int) -> None:
    series: Plain = [({"__name__": "m", "a": "b"}, [(1.0, TIME), (STALE, TIME + 1), (2.0, TIME + 2)])]
    parsed = parse(ENCODERS[version](series))
    assert [value for _, _, value in parsed.batch.points()] == [1.0, 2.0]
    assert (parsed.rejected, parsed.skipped["stale_markers"]) == ([], 1)


BAD: dict[str, tuple[Labels, float, int, Reason]] = {
    "no metric": ({"a": "b"}, 1.0, TIME, Reason.BAD_METRIC),
    "no time": ({"__name__": "m"}, 1.0, 0, Reason.BAD_TIMESTAMP),
    "negative time": ({"__name__": "m"}, 1.0, -5, Reason.BAD_TIMESTAMP),
    "time in seconds": ({"__name__": "m"}, 1.0, TIME // 1000, Reason.TIMESTAMP_OUT_OF_RANGE),
    "time in us": ({"__name__": "m"}, 1.0, TIME * 1000, Reason.TIMESTAMP_OUT_OF_RANGE),
}


@versions
@pytest.mark.parametrize("case", BAD)
def test_rejected_samples(version: int, case: str) -> None:
    labels, value, time, reason = BAD[case]
    bad: Plain = [(labels, [(value, time), (value, time)])]
    text = ENCODERS[version](NODE[:50] + bad + NODE[50:])
    parsed = parse(snappy(text))
    assert list(parsed.batch.points()) == expected(NODE)
    (rejected,) = parsed.rejected
    assert (rejected.reason, rejected.stage, rejected.points) == (reason, Stage.PARSE, 2)
    assert rejected.payload == (text if version == 2 else request_1(bad))
    again = parse(rejected.payload)
    assert [(each.reason, each.points) for each in again.rejected] == [(reason, 2)]


def test_labels_that_are_not_utf8() -> None:
    text = request_1([({"__name__": "m", "a": "xyz"}, [(1.0, TIME)])]).replace(b"xyz", b"x\xffz")
    assert [rejected.reason for rejected in parse(text).rejected] == [Reason.BAD_ENCODING]


def test_two_metrics_of_a_series_are_rejected() -> None:
    text = request_1([({"__name__": "m", "__mane__": "n"}, [(1.0, TIME)])]).replace(b"__mane__", b"__name__")
    assert [rejected.reason for rejected in parse(text).rejected] == [Reason.DUPLICATE_TAG]


@versions
@pytest.mark.parametrize("has_samples", [True, False])
def test_caches_do_not_grow_with_the_length_of_names(version: int, has_samples: bool) -> None:
    """Nor do they hold messages by rejections whose frames refer to them."""
    form = RemoteWrite()
    tracemalloc.start()
    for number in range(20):
        long = f"{number:05}" * 40_000
        request = ENCODERS[version]([({"__name__": "m", "a": long}, [(1.0, TIME)] * has_samples)])
        twice = ENCODERS[version]([({"__name__": "m", "aa": "1", "ab": f"{number}"}, [])])
        twice = twice.replace(b"ab", b"aa")
        parsed = form.parse(Message(request + (twice if version == 1 else b""), 5))
        assert (len(parsed.batch), len(parsed.rejected)) == (has_samples, 0)
    del parsed, request, long
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 1_500_000


@pytest.mark.parametrize("refs", [[1], [1, 99], [99, 1]])
def test_refs_of_no_symbol(refs: list[int]) -> None:
    request = proto("v2.Request")()
    request.symbols.extend(["", "__name__", "m"])
    for each in ([1, 2], refs):
        series = request.timeseries.add()
        series.labels_refs.extend(each)
        series.samples.add(value=1.0, timestamp=TIME)
    parsed = parse(request.SerializeToString())
    assert list(parsed.batch.points()) == [(Series.of("m", {}), TIME, 1.0)]
    assert [rejected.reason for rejected in parsed.rejected] == [Reason.BAD_TAG]


@pytest.mark.parametrize("refs", [[0], [0, 1]])
def test_refs_of_a_request_without_symbols(refs: list[int]) -> None:
    request = proto("v2.Request")()
    request.timeseries.add(labels_refs=refs).samples.add(value=1.0, timestamp=TIME)
    assert [rejected.reason for rejected in parse(request.SerializeToString()).rejected] == [Reason.BAD_TAG]


def test_exemplars_and_metadata_are_counted() -> None:
    request = proto("WriteRequest")()
    request.metadata.add(metric_family_name="m", help="h")
    series = request.timeseries.add()
    series.labels.add(name="__name__", value="m")
    series.exemplars.add(value=1.0, timestamp=TIME)
    assert parse(request.SerializeToString()).skipped == {"metadata": 1, "exemplars": 1}
    assert len(parse(request.SerializeToString()).batch) == 0


def histogram(**fields: Any) -> bytes:
    request = proto("WriteRequest")()
    series = request.timeseries.add()
    series.labels.add(name="__name__", value="h")
    series.labels.add(name="a", value="b")
    series.histograms.add(timestamp=TIME, **fields)
    return bytes(request.SerializeToString())


def values_of(parsed: Parsed) -> dict[str, float]:
    """Each value by suffix of the metric and `le`."""
    assert not parsed.rejected
    points = list(parsed.batch.points())
    assert all(time == TIME and dict(series.tags)["a"] == "b" for series, time, _ in points)
    return {series.metric + dict(series.tags).get("le", ""): float(value) for series, _, value in points}


def test_native_histograms() -> None:
    span = proto("BucketSpan")
    fields = {
        "count_int": 12, "sum": 18.5, "schema": 0, "zero_threshold": 0.001, "zero_count_int": 2,
        "positive_spans": [span(offset=0, length=2), span(offset=1, length=1)], "positive_deltas": [1, 1, 1],
        "negative_spans": [span(offset=1, length=2)], "negative_deltas": [3, -2],
    }  # fmt: skip
    # Positive buckets 0, 1 and 3: (0.5, 1], (1, 2], (4, 8]; negative ones 1 and 2: [-2, -1), [-4, -2).
    assert values_of(parse(histogram(**fields))) == {
        "h_count": 12, "h_sum": 18.5, "h_bucket-2": 1, "h_bucket-1": 4, "h_bucket0.001": 6,
        "h_bucket1": 7, "h_bucket2": 9, "h_bucket8": 12, "h_bucket+Inf": 12,
    }  # fmt: skip
    # The counts are floats; scale 1 has bounds of powers of the square root of two.
    floats = {
        "count_float": 2.5,
        "schema": 1,
        "positive_spans": [span(offset=1, length=1)],
        "positive_counts": [2.5],
    }
    assert values_of(parse(histogram(**floats))) == {
        "h_count": 2.5, "h_sum": 0, f"h_bucket{2**0.5}": 2.5, "h_bucket+Inf": 2.5,
    }  # fmt: skip
    custom = {
        "count_int": 6, "schema": -53, "custom_values": [0.1, 5.0],
        "positive_spans": [span(offset=0, length=3)], "positive_deltas": [1, 1, 1],
    }  # fmt: skip
    assert values_of(parse(histogram(**custom))) == {
        "h_count": 6, "h_sum": 0, "h_bucket0.1": 1, "h_bucket5": 3, "h_bucket+Inf": 6,
    }  # fmt: skip


def test_histograms_that_make_no_sense() -> None:
    span = proto("BucketSpan")
    for fields in (
        {"schema": 0, "positive_spans": [span(offset=0, length=2)], "positive_deltas": [1]},
        {"schema": 0, "positive_spans": [span(offset=0, length=4_000_000_000)]},
        {"schema": 99, "positive_spans": [span(offset=0, length=1)], "positive_deltas": [1]},
        {"schema": -53, "custom_values": [2.0, 1.0]},
    ):
        parsed = parse(histogram(**fields))
        assert [rejected.reason for rejected in parsed.rejected] == [Reason.VALUE_NOT_STORABLE]
        assert len(parsed.batch) == 0
    assert parse(histogram(sum=STALE)).skipped["stale_markers"] == 1


def test_buckets_beyond_63_bits_are_rejected() -> None:
    spans = [proto("BucketSpan")(offset=0, length=2)]
    parsed = parse(histogram(schema=0, positive_spans=spans, positive_deltas=[(1 << 63) - 1, 0]))
    assert [rejected.reason for rejected in parsed.rejected] == [Reason.NUMBER_OUT_OF_RANGE]
    assert len(parsed.batch) == 0


def test_what_is_no_request_is_rejected_as_a_whole() -> None:
    good = request_1(NODE)
    for text in (
        b"\x08\x01",
        b"x",
        good[:-1],
        good + b"\x0a\xff\xff\xff\xff\x0f",
        good + request_2(NODE),
        b"\x0a\x05abc",
    ):
        for sent in (text, snappy(text)):
            parsed = parse(sent)
            assert len(parsed.batch) == 0
            (rejected,) = parsed.rejected
            assert (rejected.reason, rejected.payload) == (Reason.CORRUPT_MESSAGE, text)
    for packed in (gzip.compress(good)[:-9], zstandard.compress(good)[:-9]):
        (rejected,) = parse(packed).rejected
        assert (rejected.reason, rejected.payload) == (Reason.CORRUPT_MESSAGE, packed)
    bomb = gzip.compress(bytes(65 << 20))
    assert [rejected.payload for rejected in parse(bomb).rejected] == [bomb]


@versions
def test_several_messages_and_corrupt_ones_among_them(version: int) -> None:
    good = [ENCODERS[version](NODE[n : n + 5]) for n in range(0, 100, 5)]
    bad = [good[0][:-3], b"\x0a\x02\x0a\x05", b"rubbish", good[1][:40] + b"\xff" * 9]
    texts = good[:7] + bad[:2] + good[7:] + bad[2:] + [b""]
    messages = [
        Message(snappy(text), 1000 + n, "sub", 0, Envelope(str(n), 1000 + n, {}))
        for n, text in enumerate(texts)
    ]
    (parsed,) = RemoteWrite().parse_all(messages)
    assert list(parsed.batch.points()) == expected(NODE)
    arrivals = [
        message.arrival_ms for message in messages if len(message.text) > 1 and parse(message.text).batch
    ]
    assert sorted(set(parsed.batch.arrivals_ms.tolist())) == arrivals
    assert {(each.payload, each.arrival_ms) for each in parsed.rejected} == {
        (text, 1000 + texts.index(text)) for text in bad
    }
    assert all(each.envelope in [message.envelope for message in messages] for each in parsed.rejected)
    late = rejected_point(parsed.batch, 99)
    assert parse(late.payload).batch


def test_messages_are_read_together_up_to_a_size_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_format, "LARGEST", 2 * len(RemoteWrite.example))
    plain = unpack_snappy(RemoteWrite.example)
    messages = [Message(snappy(plain), 5 + number, "topic", number) for number in range(7)]
    groups = list(RemoteWrite().parse_all([*messages, Message(b"\xff", 5, "topic", 7)]))
    assert len(groups) > 2
    assert [point for group in groups for point in group.batch.points()] == 7 * list(
        parse(RemoteWrite.example).batch.points()
    )
    assert [letter.payload for group in groups for letter in group.rejected] == [b"\xff"]


def hostile() -> st.SearchStrategy[bytes]:
    """Requests with bytes changed, cut out or repeated; nested rubbish; huge lengths; wrong types."""
    base = st.sampled_from([request_1(NODE[:30]), request_2(NODE[:30])])
    edit = st.tuples(st.integers(0, 3000), st.integers(0, 40), st.binary(max_size=12))

    def edited(text: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
        for start, size, new in edits:
            start %= len(text) + 1
            text = text[:start] + new + text[start + size :]
        return text

    nested = st.recursive(
        st.binary(max_size=20),
        lambda inner: st.tuples(st.sampled_from([8, 9, 10, 13, 18, 26, 34, 42]), inner).map(
            lambda pair: bytes([pair[0], len(pair[1]) % 128]) + pair[1]
        ),
    )
    return st.one_of(
        st.binary(max_size=200), nested, st.builds(edited, base, st.lists(edit, min_size=1, max_size=4))
    )


@given(text=hostile(), packed=st.booleans())
def test_hostile_requests_never_raise(text: bytes, packed: bool) -> None:
    parsed = parse(snappy(text) if packed else text)
    for rejected in parsed.rejected:
        if rejected.reason is Reason.CORRUPT_MESSAGE:
            assert rejected.payload in (text, snappy(text)) or "corrupt label" in rejected.message
    if parsed.rejected:
        return
    try:
        points = read_by_protobuf(RemoteWrite().plain(text))
    except DecodeError:  # a string that is not UTF-8, of no series
        return
    assert list(map(repr, parsed.batch.points())) == list(map(repr, points))


def read_by_protobuf(text: bytes) -> list[tuple[Series, int, float]]:
    """The points that protobuf's own parser reads, without histograms and stale markers."""
    request: Any = proto("WriteRequest").FromString(text)
    plain = [
        (
            {label.name: label.value for label in series.labels},
            [(sample.value, sample.timestamp) for sample in series.samples],
        )
        for series in request.timeseries
    ]
    if not plain:
        request = proto("v2.Request").FromString(text)
        for series in request.timeseries:
            if not series.samples:  # wrong references of such a series reject nothing
                continue
            texts = [request.symbols[ref] for ref in series.labels_refs]
            samples = [(sample.value, sample.timestamp) for sample in series.samples]
            plain.append((dict(zip(texts[::2], texts[1::2], strict=True)), samples))
    stale = struct.pack("<d", STALE)
    return [
        point
        for series in plain
        if series[1]
        for point in expected([series])
        if struct.pack("<d", point[2]) != stale
    ]
