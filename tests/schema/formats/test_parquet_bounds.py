"""Files of Parquet whose few bytes stand for many: strings of maps, bytes, and numbers that repeat."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from timebeam.schema.bits.compression import LARGEST
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.formats import Framing, Message, message_format
from timebeam.schema.formats.base import Parsed
from timebeam.schema.formats.parquet import read_columns
from timebeam.schema.formats.parquet.parquet_columns import TIME
from timebeam.schema.formats.parquet.parquet_format import RowOrigins
from timebeam.transforms.input.files import FileSpan, blocks, match, spans

ROWS, LONG = 100_000, "x" * 4000
MIB = 1 << 20


def rows(n: int, kind: str = "double", **columns: Any) -> pa.Table:
    """As `timebeam export` writes them."""
    return pa.table(
        {
            "metric": ["m"] * n,
            "tags": pa.array([[("host", "a")]] * n, pa.map_(pa.string(), pa.string())),
            "time": pa.array(np.arange(n) + 1_700_000_000_000, TIME),
            "kind": [kind] * n,
            "int_value": pa.nulls(n, pa.int64()),
            "double_value": [0.5] * n,
            "bytes_value": pa.nulls(n, pa.binary()),
            **columns,
        }
    )


def maps(n: int) -> pa.Table:
    """400 MB of tag values."""
    return rows(n, tags=pa.array([[("host", LONG)]] * n, pa.map_(pa.string(), pa.string())))


def values(n: int) -> pa.Table:
    """400 MB of values."""
    return rows(n, "bytes", bytes_value=pa.array([LONG.encode()] * n))


def written(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", **options)
    return sink.getvalue()


def parse(text: bytes) -> Parsed:
    return message_format("parquet").parse(Message(text, 5, "topic"))


@pytest.mark.long
def test_a_string_of_maps_takes_the_memory_that_it_has_in_the_file() -> None:
    text = written(maps(ROWS))
    assert len(text) < MIB
    parsed = parse(text)
    assert len(parsed.batch) == ROWS
    assert isinstance(parsed.batch.origins, RowOrigins)
    assert parsed.batch.origins.table.nbytes < 20 * MIB
    assert [series.tags for series in parsed.batch.series] == [(("host", LONG),)]


def test_values_of_too_many_bytes_are_rejected_as_a_whole() -> None:
    text = written(values(ROWS))
    (rejected,) = parse(text).rejected
    assert (rejected.reason, rejected.payload) == (Reason.CORRUPT_MESSAGE, text)
    assert rejected.message == f"values of more than {LARGEST} bytes in a message"
    good = parse(written(values(3)))
    assert [value for _, _, value in good.batch.points()] == [LONG.encode()] * 3


def test_numbers_that_repeat_are_counted_before_they_are_read() -> None:
    columns = {f"c{number}": pa.array(np.zeros(1_000_000, np.int64)) for number in range(40)}
    text = written(rows(1_000_000, **columns), use_dictionary=True)
    assert len(text) < 20 * MIB
    (rejected,) = parse(text).rejected
    assert rejected.reason is Reason.CORRUPT_MESSAGE
    assert f"at most {4 * LARGEST:,} are read" in rejected.message


def promising(pages: int) -> bytes:
    """A file with pages of 2 MB, whose headers say 134 MB for each, as they could say 2 GB."""
    columns = {f"c{number}": pa.array([bytes(100)] * 20_000, pa.binary(100)) for number in range(pages)}
    text = bytearray(
        written(pa.table(columns), use_dictionary=False, data_page_size=1 << 24, write_statistics=False)
    )
    metadata = pq.ParquetFile(io.BytesIO(text)).metadata.row_group(0)
    for number in range(pages):
        start = metadata.column(number).data_page_offset
        head = text[start : start + 7]
        assert (head[:3], head[6] < 0x80 <= min(head[3:6])) == (
            b"\x15\x00\x15",
            True,
        )  # type 0, then the size
        text[start + 3 : start + 7] = b"\xfe\xff\xff\x7f"
    return bytes(text)


def test_page_headers_that_promise_more_than_the_footer_are_rejected() -> None:
    """A reader allocates what they say."""
    text = promising(3)
    before = pa.default_memory_pool().max_memory()
    (rejected,) = parse(text).rejected
    assert (rejected.reason, "pages of 402,653,181 bytes;" in rejected.message) == (
        Reason.CORRUPT_MESSAGE,
        True,
    )
    assert pa.default_memory_pool().max_memory() < before + 100 * MIB


def test_page_headers_of_a_row_group_that_promise_more_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(promising(9))
    before = pa.default_memory_pool().max_memory()
    (rejected,) = blocks(FileSpan(str(tmp_path / "a.parquet"), 0, 1, 5), Framing.PARQUET)
    assert isinstance(rejected, Rejected)
    assert (rejected.reason, "pages of 1,207,959,543 bytes;" in rejected.message) == (
        Reason.CORRUPT_FILE,
        True,
    )
    assert pa.default_memory_pool().max_memory() < before + 100 * MIB


@pytest.mark.parametrize("corruption", [b"\x00", b"\x19", b"\xff" * 12, b"\x1c" * 12])
def test_corrupt_page_headers_are_rejected(corruption: bytes) -> None:
    text = bytearray(written(rows(10)))
    column = pq.ParquetFile(io.BytesIO(text)).metadata.row_group(0).column(3)
    start = min(column.data_page_offset, column.dictionary_page_offset)
    text[start : start + len(corruption)] = corruption
    (rejected,) = parse(bytes(text)).rejected
    assert (rejected.reason, rejected.payload) == (Reason.CORRUPT_MESSAGE, bytes(text))
    assert f"at byte {start:,}" in rejected.message


def test_a_dictionary_page_at_byte_0_is_none() -> None:
    """Some writers say so of columns without a dictionary."""
    text = written(rows(10), use_dictionary=False, write_statistics=False)
    size = int.from_bytes(text[-8:-4], "little")
    footer = text[-8 - size : -8].replace(b"\x26\x08\x49", b"\x26\x08\x26\x00\x29", 1)  # field 11, 0
    text = text[: -8 - size] + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    assert pq.ParquetFile(io.BytesIO(text)).metadata.row_group(0).column(0).dictionary_page_offset == 0
    parsed = parse(text)
    assert (len(parsed.batch), parsed.rejected) == (10, [])


@pytest.mark.parametrize("table", [maps, values])
def test_row_groups_of_files_are_cut_by_their_bytes(tmp_path: Path, table: Any) -> None:
    path = tmp_path / "long.parquet"
    path.write_bytes(written(table(ROWS)))
    points = 0
    for span in spans(match([str(path)])[0], Framing.PARQUET):
        for block in blocks(span, Framing.PARQUET):
            assert isinstance(block, Message)
            assert len(block.text) < 4 * MIB
            batch = message_format("parquet").parse(block).batch
            assert sum(map(len, batch.payloads)) <= LARGEST + len(LONG)
            points += len(batch)
    assert points == ROWS


def test_a_rejected_row_holds_no_strings_of_other_rows() -> None:
    names = ["m", LONG]
    table = rows(2, metric=names, double_value=[float("nan"), 0.5], tags=maps(2)["tags"])
    (rejected,) = parse(written(table)).rejected
    assert len(rejected.payload) < 2 * len(LONG)
    again = parse(rejected.payload)
    assert [each.reason for each in again.rejected] == [Reason.BAD_NUMBER]


def stream(table: pa.Table, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)
    ) as file:
        file.write_table(table)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_a_compressed_stream_is_rejected_before_it_is_unpacked(compression: str) -> None:
    (rejected,) = parse(text := stream(rows(3), compression)).rejected
    assert (rejected.reason, rejected.payload) == (Reason.CORRUPT_MESSAGE, text)
    assert "compressed buffers" in rejected.message
    assert len(parse(stream(rows(3))).batch) == 3


def test_a_compressed_dictionary_is_rejected() -> None:
    table = rows(3, metric=pa.array(["m"] * 3).dictionary_encode())
    assert len(parse(stream(table)).batch) == 3
    (rejected,) = parse(stream(table, "zstd")).rejected
    assert "compressed buffers" in rejected.message


def test_rows_without_bytes_are_counted_before_they_are_read() -> None:
    text = stream(pa.table({"time": pa.nulls(1 << 30), "value": pa.nulls(1 << 30)}))
    assert len(text) < 1000
    fields = {"parquet_fields": "metric:=m,timestamp=time,value=value,tag:a:=b"}
    (rejected,) = message_format("parquet", fields).parse(Message(text, 5, "topic")).rejected
    assert "it has 1,073,741,824 rows" in rejected.message


@pytest.mark.parametrize("position", range(0, 400, 7))
def test_a_corrupt_stream_is_rejected(position: int) -> None:
    text = bytearray(stream(rows(3)))
    text[position] ^= 0xFF
    parse(bytes(text))
    parse(bytes(text[:position]))


def test_many_tags_of_one_row_do_not_make_columns_for_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_columns, "_MOST_MAP_CELLS", 20)
    tags: list[list[tuple[str, str]]] = [[("host", "a")]] * 9
    table = rows(10, tags=pa.array([*tags, [("a", "b"), ("c", "d")]], pa.map_(pa.string(), pa.string())))
    assert len(parse(written(table)).batch) == 10
    (rejected,) = parse(text := written(rows(21))).rejected
    assert (rejected.reason, rejected.payload) == (Reason.TOO_MANY_TAGS, text)


def test_rejected_rows_that_repeat_a_long_name_are_listed_in_their_message() -> None:
    """Alone each would have the name; the good rows are stored."""
    values = [float("nan")] * 300
    values[7] = 1.5
    text = written(rows(300, metric=[LONG] * 300, double_value=values))
    assert len(text) < MIB // 10
    parsed = parse(text)
    assert [value for _, _, value in parsed.batch.points()] == [1.5]
    (rejected,) = parsed.rejected
    assert (rejected.reason, rejected.payload, rejected.points) == (Reason.BAD_NUMBER, text, 299)
    assert rejected.records == ((0, 7), (8, 292))
    again = message_format("parquet", {}).parse(Message(text, 5, records=((6, 2), (9, 1))))
    assert [value for _, _, value in again.batch.points()] == [1.5]
    (both,) = again.rejected
    assert (both.points, len(parse(both.payload).rejected)) == (2, 1)


def test_rejected_rows_of_a_reason_are_one_payload_of_their_own() -> None:
    """Also at a later step."""
    times = [1_600_000_000_000 + 1000 * row for row in range(9)]
    times[3] = times[5] = -1
    parsed = parse(written(rows(9, time=pa.array(times, TIME), double_value=[*[1.0] * 8, float("nan")])))
    assert [(each.reason, each.offset, each.points) for each in parsed.rejected] == [
        (Reason.BAD_TIMESTAMP, 3, 2),
        (Reason.BAD_NUMBER, 8, 1),
    ]
    assert [[each.points for each in parse(each.payload).rejected] for each in parsed.rejected] == [[2], [1]]
    why = RejectedError(Reason.UNKNOWN_NAME, "why")
    (late,) = parsed.batch.reject(np.array([0, 4]), lambda _: why, Stage.ASSIGN)
    assert (late.points, late.records, late.stage) == (2, (), Stage.ASSIGN)
    assert list(parse(late.payload).batch.points()) == list(parsed.batch.take(np.array([0, 4])).points())
