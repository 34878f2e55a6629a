"""Message format `records`: JSON lines, CSV, Avro; numbers as written, bad records one by one."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebeam.schema.bits.reasons import Reason
from timebeam.schema.formats.base import Message
from timebeam.schema.stores.declared.records import RecordBatch, read_avro, read_csv, read_json


def message(text: bytes) -> Message:
    return Message(text, 17, "file", 1000)


def texts(batch: RecordBatch) -> list[dict[str, str]]:
    """The records as texts, without what is absent."""
    columns = {name: batch.texts(name).to_pylist() for name in batch.fields}
    return [{n: v[i] for n, v in columns.items() if v[i] is not None} for i in range(len(batch))]


def test_json_keeps_what_was_written() -> None:
    lines = (
        b'{"A":600.60,"B":"600.60","C":1e5,"D":true,"E":null,"F":[1, 2],"G":"\\u00e9\\"",'
        b'"H":12345678901234567890}'
    )
    batch, rejected = read_json(message(lines + b"\r\n\n"))
    assert rejected == []
    assert texts(batch) == [
        {
            "A": "600.60",
            "B": "600.60",
            "C": "1e5",
            "D": "true",
            "F": "[1, 2]",
            "G": 'é"',
            "H": "12345678901234567890",
        }
    ]
    assert [name for name in "ABCDFGH" if batch.are_texts(name)[0]] == ["B", "G"]
    assert batch.arrivals_ms.tolist() == [17]
    assert batch.payload(0) == lines


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", Reason.BAD_SYNTAX),
        (b"[1]", Reason.BAD_SYNTAX),
        (b"7", Reason.BAD_SYNTAX),
        (b'{"A":1} x', Reason.BAD_SYNTAX),
        (b'{"A":NaN}', Reason.BAD_SYNTAX),
        (b'{"A":1,"A":1}', Reason.BAD_SYNTAX),
        (b'{"A":1,"\\u0041":2}', Reason.BAD_SYNTAX),
        (b'{"A" :1,"A":2}', Reason.BAD_SYNTAX),
        (b'{"m":{"x":1,"x":2}}', Reason.BAD_SYNTAX),
        (b'{"A":"\\ud800"}', Reason.BAD_SYNTAX),
        (b'{"A":"\xff"}', Reason.BAD_ENCODING),
        (b"{" + b'"a":[' * 20_000, Reason.BAD_SYNTAX),
    ],
)
def test_bad_json_lines_are_rejected_one_by_one(line: bytes, reason: Reason) -> None:
    good = b'{"A":1,"m":{"x":"\\":"}}'
    batch, (rejected,) = read_json(message(b"\n".join([good, line, good])))
    assert texts(batch) == [{"A": "1", "m": '{"x":"\\":"}'}] * 2
    assert (rejected.reason, rejected.payload, rejected.source) == (reason, line, "file")
    assert rejected.offset == 1000 + len(good) + 1


values = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
)
names = st.text(min_size=1, max_size=3)


@given(
    st.lists(
        st.dictionaries(names, values | st.dictionaries(names, values, max_size=2), max_size=4), max_size=5
    ),
    st.booleans(),
)
def test_json_against_the_standard_library(found: list[dict[str, Any]], compact: bool) -> None:
    options: dict[str, Any] = {"separators": (",", ":")} if compact else {}
    lines = [json.dumps(one, ensure_ascii=compact, **options) for one in found]
    try:
        text = "\n".join(lines).encode()
    except UnicodeEncodeError:
        return  # half a surrogate pair, which only escapes can say
    batch, rejected = read_json(message(text))
    bad = [
        line
        for line in lines
        if any("\ud800" <= c <= "\udfff" for c in json.dumps(json.loads(line), ensure_ascii=False))
    ]
    assert len(rejected) == len(bad)
    expected = [
        {
            name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=compact, **options)
            for name, value in one.items()
            if value is not None
        }
        for one, line in zip(found, lines, strict=True)
        if line not in bad
    ]
    assert texts(batch) == expected


def test_csv() -> None:
    text = b'A,B\r\n1.50,"x, ""y"""\n,z\n1\n"a\n\xff,1\n"",2'
    batch, rejected = read_csv(message(text))
    assert texts(batch) == [{"A": "1.50", "B": 'x, "y"'}, {"B": "z"}, {"B": "2"}]
    assert [one.reason for one in rejected] == [Reason.BAD_SYNTAX, Reason.BAD_SYNTAX, Reason.BAD_ENCODING]
    assert [one.payload for one in rejected] == [b"1", b'"a', b"\xff,1"]
    assert batch.payload(1) == b",z"
    again, _ = read_csv(message(b"5,6"), ["A", "B"])
    assert texts(again) == [{"A": "5", "B": "6"}]
    assert len(read_csv(message(b""))[0]) == 0


@pytest.mark.parametrize("header", [b"A,A\n", b"A,,B\n"])
def test_headers_that_name_no_fields(header: bytes) -> None:
    with pytest.raises(ValueError, match="empty name, or one that is repeated"):
        read_csv(message(header))


cells = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\0"), max_size=5)


@given(st.lists(st.tuples(cells, cells), max_size=5))
def test_csv_against_the_standard_library(found: list[tuple[str, str]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerows([("A", "B"), *found])
    batch, rejected = read_csv(message(text.getvalue().encode()))
    assert rejected == []
    assert texts(batch) == [{n: v for n, v in zip("AB", pair, strict=True) if v} for pair in found]


def test_avro() -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "A", "type": ["null", "string"]},
            {"name": "N", "type": "long"},
            {"name": "F", "type": "double"},
            {"name": "M", "type": {"type": "map", "values": "double"}},
            {"name": "X", "type": ["null", "bytes"]},
        ],
    }
    file = io.BytesIO()
    records = [
        {"A": "a", "N": 2**62, "F": 0.1, "M": {"x": 1.5}, "X": None},
        {"A": None, "N": 1, "F": 1.0, "M": {}, "X": b"?"},
        {"A": None, "N": 1, "F": float("nan"), "M": {}, "X": None},
        {"A": None, "N": 2, "F": 1.0, "M": {}, "X": None},
    ]
    fastavro.writer(file, fastavro.parse_schema(schema), records)
    batch, (rejected, no_number) = read_avro(message(file.getvalue()))
    assert texts(batch) == [
        {"A": "a", "N": str(2**62), "F": "0.1", "M": '{"x":1.5}'},
        {"N": "2", "F": "1.0", "M": "{}"},
    ]
    assert batch.origins is None
    assert (no_number.reason, no_number.message) == (Reason.BAD_NUMBER, "F: nan is not a number")
    assert (rejected.reason, rejected.message) == (Reason.VALUE_NOT_STORABLE, "X: bytes have no text")
    *_, rejected = read_avro(message(file.getvalue()[:-20]))[1]
    assert rejected.reason is Reason.CORRUPT_FILE
    batch, (rejected,) = read_avro(message(b"no container"))
    assert (len(batch), rejected.payload) == (0, b"no container")
