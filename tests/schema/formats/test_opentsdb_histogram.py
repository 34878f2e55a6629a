"""Format `opentsdb-histogram`: what a real TSD stored of a body, and the same histograms in other words."""

from __future__ import annotations

import base64
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden.cases import Case, cases
from timebeam.schema.bits.arrays import Kind
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.contract import pack_row
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.core.points import PointBatch, Series, SeriesKey
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.formats import Message, message_format
from timebeam.schema.formats.base import Parsed
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions

CASES = [pytest.param(case, id=case.name) for case in cases("histogram")]
GOOD = {"metric": "m", "timestamp": 1356998407, "tags": {"host": "a"}, "buckets": {"0,1.75": 12, "1.75,3": 1}}
LINE = "histogram m 1356998407 0,1.75=12:1.75,3=1 host=a"
SERIES = Series.of("m", {"host": "a"})
VALUE = bytes.fromhex("2a 0002 00000000 3fe00000 0c 3fe00000 40400000 01 00 00")


def parse(text: str | bytes, **options: Any) -> Parsed:
    raw = text.encode() if isinstance(text, str) else text
    return message_format("opentsdb-histogram", options).parse(Message(raw, 5, "topic"))


def content(parsed: Parsed) -> list[tuple[Series, int, bytes]]:
    assert (parsed.batch.kinds == Kind.HISTOGRAM).all()
    return list(parsed.batch.points())  # type: ignore[arg-type]


def bodies(case: Case) -> list[str]:
    """The histograms of a case as a body, and as telnet lines of both forms."""
    (point,) = body = case.steps[0]["http"][2]
    flows = [f"u={point['underflow']}", f"O={point['overflow']}"]
    buckets = [*reversed([f"{bounds}={count}" for bounds, count in point["buckets"].items()]), *flows]
    stored = base64.b64encode(next(iter(case.cells))[2][1:]).decode()
    head = f"histogram {point['metric']} {point['timestamp']}"
    packed = {"id": 42, "value": stored}
    return [
        json.dumps(body),
        json.dumps(body, indent=1),
        json.dumps(point),
        json.dumps({**point, "buckets": None, **packed}),
        f"{head} {':'.join(buckets)} host=a",
        f"{head}.000 42 {stored}  host=a\r" if point["timestamp"] < 0 else f"{head} 42 {stored}  host=a\r",
    ]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("packing", Packing)
def test_what_a_tsd_stored(case: Case, packing: Packing) -> None:
    ((key, qualifier, value),) = case.cells
    layout = OpenTsdb(OpenTsdbOptions(table_prefix=""))
    for body in bodies(case):
        parsed = parse(body)
        assert not parsed.rejected, body
        encoded = layout.encode(parsed.batch, [SeriesKey(key[:3], key[7:])])
        assert not encoded.rejected
        (fragment,) = encoded.fragments
        row = pack_row(layout, fragment.table, fragment.key, [fragment.packed], packing)
        assert row == Row("tsdb", key, [Cell("t", qualifier, 5, value)])


def rows(*batches: PointBatch, packing: Packing) -> list[tuple[bytes, bytes, int]]:
    """(qualifier, value, cell timestamp) of the one row of points of one series."""
    layout = OpenTsdb(OpenTsdbOptions(table_prefix=""))
    encoded = [layout.encode(batch, [SeriesKey(b"\0\0\1", b"\0\0\1\0\0\1")]) for batch in batches]
    fragments = [fragment for each in encoded for fragment in each.fragments]
    (key,) = {fragment.key for fragment in fragments}
    row = pack_row(layout, "tsdb", key, [fragment.packed for fragment in fragments], packing)
    return [(cell.qualifier, cell.value, cell.timestamp_ms) for cell in row.cells]


@pytest.mark.parametrize("packing", Packing)
def test_histograms_beside_numbers_of_a_row(packing: Packing) -> None:
    """Each has its own column, whatever the order of the batches; of one column the latest arrival."""

    def batch(arrival_ms: int, *lines: str) -> PointBatch:
        text = "\n".join(lines).encode()
        parsed = message_format("opentsdb-histogram").parse(Message(text, arrival_ms, "topic"))
        assert not parsed.rejected
        return parsed.batch

    numbers = PointBatch.of([(SERIES, 1_356_998_407_000, False, 7), (SERIES, 1_356_998_409_000, False, 8)], 6)
    old = batch(5, LINE, LINE.replace("1356998407", "1356998407500"))
    new = batch(6, LINE.replace("=12", "=99"), LINE.replace("=12", "=13"))
    results = {
        tuple(sorted(rows(*order, packing=packing))) for order in itertools.permutations([numbers, old, new])
    }
    (cells,) = results
    histograms = [cell for cell in cells if cell[0][0] == 6 and len(cell[0]) in (3, 5)]
    assert histograms == [
        (b"\x06\x00\x00\x1d\x4c", VALUE, 5),
        (b"\x06\x00\x07", VALUE.replace(b"\x0c", b"\x0d"), 6),
    ]
    assert sorted(set(cells) - set(histograms)) == sorted(rows(numbers, packing=packing))


def test_ids_of_codecs() -> None:
    assert content(parse(LINE)) == [(SERIES, 1_356_998_407_000, VALUE)]
    assert content(parse(LINE, histogram_id=7))[0][2] == b"\x07" + VALUE[1:]
    other = LINE.replace("0,1.75=12:1.75,3=1", f"9 {base64.b64encode(b'sketch').decode()}")
    assert content(parse(other))[0][2] == b"\x09sketch"
    (rejected,) = parse(other, histogram_id=9).rejected
    assert "id 9 is that of SimpleHistogram (--histogram-id), which this is not" in rejected.message
    for wrong in (-1, 256):
        with pytest.raises(ValueError, match="histogram_id must be from 0 to 255"):
            parse(LINE, histogram_id=wrong)


@pytest.mark.parametrize(
    ("changes", "reason", "message"),
    [
        ({"metric": ""}, Reason.BAD_METRIC, "Metric name was empty"),
        ({"metric": 5}, Reason.BAD_METRIC, "must be a string"),
        ({"timestamp": 0}, Reason.BAD_TIMESTAMP, "Invalid timestamp"),
        ({"timestamp": 1.5}, Reason.BAD_TIMESTAMP, "Invalid timestamp"),
        ({"tags": {}}, Reason.NO_TAGS, "Missing tags"),
        (
            {"buckets": {}},
            Reason.EMPTY_VALUE,
            "Histogram buckets cannot be null or empty if",
        ),
        ({"buckets": {"0": 1}}, Reason.VALUE_NOT_STORABLE, "Unable to parse bucket bounds: 0"),
        ({"buckets": {"0,1,2": 1}}, Reason.VALUE_NOT_STORABLE, "Unable to parse bucket bounds: 0,1,2"),
        ({"buckets": {"0,x": 1}}, Reason.VALUE_NOT_STORABLE, "the bound 'x' of a bucket is not a number"),
        ({"buckets": {"0,NaN": 1}}, Reason.VALUE_NOT_STORABLE, "the bound 'NaN' of a bucket is not a number"),
        ({"buckets": {"0,1e39": 1}}, Reason.NUMBER_OUT_OF_RANGE, "1e39 is beyond a 32-bit float"),
        ({"buckets": {"0,1": 1.5}}, Reason.VALUE_NOT_STORABLE, "'1.5' is not a 64-bit integer"),
        ({"buckets": {"0,1": 2**63}}, Reason.VALUE_NOT_STORABLE, "is not a 64-bit integer"),
        ({"buckets": {"0,1": 1, "0,1.0": 2}}, Reason.VALUE_NOT_STORABLE, "duplicate bucket: 0,1.0"),
        ({"underflow": "x"}, Reason.VALUE_NOT_STORABLE, "'x' is not a 64-bit integer"),
        ({"value": "AAAA", "id": 256}, Reason.VALUE_NOT_STORABLE, "Must be from 0 to 255"),
        ({"value": "a b", "id": 1}, Reason.VALUE_NOT_STORABLE, "the histogram is not base64"),
        ({"value": "AAAA", "id": 42}, Reason.VALUE_NOT_STORABLE, "which this is not"),
    ],
)
def test_objects_that_are_rejected(changes: dict[str, Any], reason: Reason, message: str) -> None:
    bad = json.dumps(GOOD | changes)
    parsed = parse(f"[{json.dumps(GOOD)},{bad}]")
    assert content(parsed) == [(SERIES, 1_356_998_407_000, VALUE)]
    (rejected,) = parsed.rejected
    assert (rejected.reason, rejected.payload) == (reason, bad.encode())
    assert message in rejected.message


@pytest.mark.parametrize(
    ("line", "reason", "message"),
    [
        (
            "put m 1356998407 1 host=a",
            Reason.BAD_SYNTAX,
            "'put' is neither a line",
        ),
        ("histogram m 1356998407", Reason.BAD_SYNTAX, "not enough arguments (need least 5, got 2)"),
        ("histogram m 1356998407 0,1=1", Reason.NO_TAGS, "not enough arguments (need least 5, got 3)"),
        ("histogram  1356998407 0,1=1 host=a", Reason.BAD_METRIC, "empty metric name"),
        ("histogram m x 0,1=1 host=a", Reason.BAD_TIMESTAMP, "Invalid timestamp 'x'"),
        ("histogram m 1356998407 0,1 host=a", Reason.VALUE_NOT_STORABLE, "Improperly formatted bucket: 0,1"),
        ("histogram m 1356998407 0=1=2 host=a", Reason.VALUE_NOT_STORABLE, "Improperly formatted bucket"),
        ("histogram m 1356998407 x=1 host=a", Reason.VALUE_NOT_STORABLE, "Unable to parse bucket bounds: x"),
        ("histogram m 1356998407 9 AAAA", Reason.NO_TAGS, "Missing tags"),
        ("histogram m 1356998407 0,1=1 host", Reason.BAD_TAG, "invalid tag: host"),
    ],
)
def test_lines_that_are_rejected(line: str, reason: Reason, message: str) -> None:
    parsed = parse(f"{LINE}\n{line}\n")
    assert content(parsed) == [(SERIES, 1_356_998_407_000, VALUE)]
    (rejected,) = parsed.rejected
    assert (rejected.reason, rejected.payload, rejected.offset) == (reason, line.encode(), len(LINE) + 1)
    assert message in rejected.message


@given(
    st.lists(
        st.binary(max_size=40)
        | st.sampled_from([LINE.encode(), json.dumps(GOOD).encode(), json.dumps([GOOD]).encode(), b"["])
        | st.text('histogram 0123456789,.=:uo{}[]"', max_size=80).map(str.encode),
        max_size=6,
    )
)
def test_any_bytes_are_points_or_rejected(lines: list[bytes]) -> None:
    parsed = parse(b"\n".join(lines))
    for rejected in parsed.rejected:
        assert rejected.payload in b"\n".join(lines)
    content(parsed)
