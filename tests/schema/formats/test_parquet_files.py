"""Parquet files of all kinds: valid ones are read, and those that end a process in Arrow rejected once."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.formats import Framing, Message, message_format
from timebeam.schema.formats.base import Parsed
from timebeam.schema.formats.parquet import footer as footers
from timebeam.schema.formats.parquet.thrift import I64, Table, ThriftReader
from timebeam.schema.formats.parquet.thrift import written as struct_written
from timebeam.transforms.input.files import blocks, match, spans

FIELDS = {"parquet_fields": "metric=metric,timestamp=timestamp,value=value,tags=tags"}
MIB = 1 << 20


def rows(n: int = 10, **columns: Any) -> pa.Table:
    hosts = [[("host", f"h{number % 3}")] for number in range(n)]
    return pa.table(
        {
            "metric": [f"m{number // 5}" for number in range(n)],
            "timestamp": range(1_356_998_400, 1_356_998_400 + n),
            "value": [number / 2 for number in range(n)],
            "tags": pa.array(hosts, pa.map_(pa.string(), pa.string())),
            **columns,
        }
    )


def written(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def parse(text: bytes) -> Parsed:
    return message_format("parquet", FIELDS).parse(Message(text, 5, "topic"))


def of_file(folder: Path, text: bytes) -> tuple[list[Any], list[Rejected]]:
    """(points, rejections) of an input file."""
    (folder / "a.parquet").write_bytes(text)
    points: list[Any] = []
    rejected: list[Rejected] = []
    for span in spans(match([str(folder / "a.parquet")])[0], Framing.PARQUET):
        for block in blocks(span, Framing.PARQUET):
            if isinstance(block, Rejected):
                rejected.append(block)
            else:
                parsed = message_format("parquet", FIELDS).parse(block)
                points += parsed.batch.points()
                rejected += parsed.rejected
    return points, rejected


TEXTS = ("metric", "tags.key_value.key", "tags.key_value.value")
WRITTEN = {
    f"{encoding}, {version}, {codec}": {
        "use_dictionary": False,
        "column_encoding": dict.fromkeys(TEXTS, encoding),
        "data_page_version": version,
        "compression": codec,
        "row_group_size": size,
    }
    for encoding in ("PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY")
    for version, codec, size in (("1.0", "snappy", 500), ("2.0", "gzip", 150), ("2.0", "none", 500))
} | {"dictionaries, row groups": {"row_group_size": 70}}


@pytest.mark.parametrize("name", WRITTEN)
def test_strings_are_read_in_each_encoding(tmp_path: Path, name: str) -> None:
    hosts = [[("host", f"machine-{number * number}"), ("site", "lab")] for number in range(400)]
    metrics = [f"system.cpu.{number // 3}" for number in range(400)]
    table = rows(400, metric=metrics, tags=pa.array(hosts, pa.map_(pa.string(), pa.string())))
    expected = list(parse(written(table)).batch.points())
    assert [each.metric for each, *_ in expected] == metrics
    text = written(table, **WRITTEN[name])
    parsed = parse(text)
    assert (list(parsed.batch.points()), parsed.rejected) == (expected, [])
    assert of_file(tmp_path, text) == (expected, [])


def test_a_rejected_row_of_strings_in_deltas_is_read_again() -> None:
    text = written(rows(3, value=[0.5, float("nan"), 1.5]), **WRITTEN["DELTA_BYTE_ARRAY, 1.0, snappy"])
    parsed = parse(text)
    (rejected,) = parsed.rejected
    assert (len(parsed.batch), rejected.reason) == (2, Reason.BAD_NUMBER)
    again = parse(rejected.payload).rejected
    assert [(each.reason, each.payload) for each in again] == [(Reason.BAD_NUMBER, rejected.payload)]


def repeated(n: int, value: pa.Array) -> pa.Array:
    """A value n times, once in memory."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * n, pa.int32()), value)


def deltas(n: int) -> bytes:
    """A metric of 20,000 characters, whose repetition takes a few bits."""
    options = WRITTEN["DELTA_BYTE_ARRAY, 2.0, gzip"] | {"row_group_size": n, "store_schema": False}
    return written(rows(n, metric=repeated(n, pa.array(["x" * 20_000]))), **options)


def dictionary_of_no_text(n: int) -> bytes:
    """A value of fixed length, which is not read as a dictionary."""
    table = rows(n).append_column("d", repeated(n, pa.array([b"x" * 20_000], pa.binary(20_000))))
    return written(table, use_dictionary=["d"], store_schema=False)


@pytest.mark.parametrize("bomb", [deltas, dictionary_of_no_text])
def test_strings_that_repeat_in_few_bytes_are_counted_before_they_are_read(
    bomb: Callable[[int], bytes],
) -> None:
    """They are gigabytes one by one."""
    assert len(parse(bomb(10)).batch) == 10
    text = bomb(15_000)
    assert len(text) < 2 * MIB
    before = pa.default_memory_pool().bytes_allocated()
    (rejected,) = parse(text).rejected
    assert (rejected.reason, rejected.payload) == (Reason.CORRUPT_MESSAGE, text)
    assert "00 bytes; at most" in rejected.message or "strings" in rejected.message
    assert pa.default_memory_pool().bytes_allocated() < before + 100 * MIB


class _Keys(pe.KmsClient):  # type: ignore[misc]
    """Keys that stand in the file."""

    def wrap_key(self, key: bytes, _name: str) -> str:
        return base64.b64encode(key).decode()

    def unwrap_key(self, wrapped: str, _name: str) -> bytes:
        return base64.b64decode(wrapped)


def encrypted(table: pa.Table, *, plain_footer: bool) -> bytes:
    """A file whose column `value` is encrypted."""
    configuration = pe.EncryptionConfiguration(
        footer_key="footer", column_keys={"column": ["value"]}, plaintext_footer=plain_footer
    )
    factory = pe.CryptoFactory(lambda _: _Keys())
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), configuration)
    return written(table, encryption_properties=properties, row_group_size=4)


@pytest.mark.parametrize("plain_footer", [True, False])
def test_encrypted_files_are_rejected_once(tmp_path: Path, plain_footer: bool) -> None:
    """Arrow ended the process if the footer was plain."""
    text = encrypted(rows(), plain_footer=plain_footer)
    (rejected,) = parse(text).rejected
    assert (rejected.reason, rejected.payload) == (Reason.CORRUPT_MESSAGE, text)
    assert "encrypted: write the file without encryption" in rejected.message
    points, (letter,) = of_file(tmp_path, text)
    assert (points, letter.reason) == ([], Reason.CORRUPT_FILE)
    assert "encrypted: write the file without encryption" in letter.message


_META: Table = footers._META | {16: {1: I64, 2: [I64], 3: [I64]}}
_FILE: Table = footers._FILE_WRITTEN | {4: [{1: [footers._CHUNK | {3: _META}], 2: I64, 3: I64}]}


def with_footer(text: bytes, change: Any) -> bytes:
    """A file whose footer a function has changed."""
    start = len(text) - 8 - int.from_bytes(text[-8:-4], "little")
    fields = ThriftReader(text[start:-8]).struct(_FILE)
    change(fields)
    footer = struct_written(_FILE, fields)
    return text[:start] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def test_sizes_that_do_not_fit_end_no_process(tmp_path: Path) -> None:
    """Arrow ends it as soon as it looks at such a column; they are of no use here."""

    def change(fields: dict[int, Any]) -> None:
        fields[4][0][1][3][3][16] = {1: 80, 2: [1, 2, 3], 3: [1]}

    text = with_footer(written(rows()), change)
    assert len(parse(text).batch) == 10
    assert len(of_file(tmp_path, text)[0]) == 10


def _encoding(fields: dict[int, Any]) -> None:
    fields[4][0][1][0][3][2] = [99]


def _codec(fields: dict[int, Any]) -> None:
    fields[4][0][1][0][3][4] = 44


def _kind(fields: dict[int, Any]) -> None:
    fields[4][0][1][0][3][1] = 2


def _place(fields: dict[int, Any]) -> None:
    fields[4][0][1][0][3][9] = 1 << 40


def _values(fields: dict[int, Any]) -> None:
    fields[4][0][1][0][3][5] = 9


def _rows(fields: dict[int, Any]) -> None:
    fields[3] = 11


def _columns(fields: dict[int, Any]) -> None:
    fields[4][0][1].pop()


def _tree(fields: dict[int, Any]) -> None:
    fields[2][0][5] = 50


def _no_groups(fields: dict[int, Any]) -> None:
    del fields[4]


def _deep(fields: dict[int, Any]) -> None:
    fields[2] = [fields[2][0] | {5: 1}] + [{3: 0, 4: b"g", 5: 1}] * 1000 + [fields[2][1]]


def _elsewhere(fields: dict[int, Any]) -> None:
    fields[4][0][1][0][1] = b"/etc/passwd"


@pytest.mark.parametrize(
    "change",
    [_encoding, _codec, _kind, _place, _values, _rows, _columns, _tree, _no_groups, _deep, _elsewhere],
)
def test_footers_that_make_no_sense_are_rejected(tmp_path: Path, change: Any) -> None:
    assert len(parse(with_footer(written(rows()), lambda _: None)).batch) == 10
    text = with_footer(written(rows()), change)
    (rejected,) = parse(text).rejected
    assert (rejected.reason, rejected.payload) == (Reason.CORRUPT_MESSAGE, text)
    points, (letter,) = of_file(tmp_path, text)
    assert (points, letter.reason) == ([], Reason.CORRUPT_FILE)


def test_rows_that_a_column_lacks_are_rejected(tmp_path: Path) -> None:
    """Arrow ends the pieces of a row group with its shortest column, without a word."""
    text = bytearray(written(rows(), use_dictionary=False, compression="none", write_statistics=False))
    start = pq.ParquetFile(io.BytesIO(text)).metadata.row_group(0).column(2).data_page_offset
    text[text.index(b"\x2c\x15\x14", start) + 2] = 0  # 10 values in its page
    points, (letter,) = of_file(tmp_path, bytes(text))
    assert (points, letter.reason) == ([], Reason.CORRUPT_FILE)


def test_numbers_behind_a_dictionary_are_rejected() -> None:
    tags = pa.array([[("host", "a"), ("site", "b")]] * 10, pa.map_(pa.string(), pa.string()))
    text = bytearray(written(rows(tags=tags), compression="none", write_statistics=False))
    start = pq.ParquetFile(io.BytesIO(text)).metadata.row_group(0).column(3).dictionary_page_offset
    text[text.index(b"\x4c\x15\x04", start) + 2] = 0  # two keys
    (rejected,) = parse(bytes(text)).rejected
    assert (rejected.reason, rejected.payload) == (Reason.CORRUPT_MESSAGE, bytes(text))
