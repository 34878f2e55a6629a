"""Avro files into messages of whole blocks, and from files to points in a pipeline."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import apache_beam as beam
import fastavro
import pytest

from tests.support.inputs.file_lines import sizes
from tests.support.processes.eager import eagerly
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.formats import Framing, Message, message_format
from timebeam.transforms.flow.steps import REJECTED, rejecting
from timebeam.transforms.input import files
from timebeam.transforms.input.files import ReadBlocks, match
from timebeam.transforms.input.parse import ParseFn

SCHEMA = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "sensor", "type": "string"},
        {"name": "at", "type": "long"},
        {"name": "reading", "type": "double"},
    ],
}
FIELDS = "metric:=temperature,timestamp=at,value=reading,tag:sensor=sensor"
RECORDS = [{"sensor": f"s{i % 5}", "at": 1_356_998_400 + i, "reading": i * 0.5} for i in range(400)]


def avro(codec: str) -> bytes:
    """The records in a container of many blocks."""
    file = io.BytesIO()
    fastavro.writer(file, SCHEMA, RECORDS, codec=codec, sync_interval=300)
    return file.getvalue()


def read(path: Path) -> tuple[list[Message], list[Rejected]]:
    """The messages and the rejections of a file."""
    (file,) = match([str(path)])
    parts = list(files.spans(file, Framing.AVRO))
    assert len(parts) == 1
    found = list(files.blocks(parts[0], Framing.AVRO))
    messages = [block for block in found if isinstance(block, Message)]
    return messages, [block for block in found if isinstance(block, Rejected)]


def readings(messages: list[Message]) -> list[tuple[str, int, float]]:
    """(sensor, time in s, value) of all points, of which none may be rejected."""
    form = message_format("avro", {"avro_fields": FIELDS})
    found = []
    for message in messages:
        parsed = form.parse(message)
        assert not parsed.rejected
        found += [(series.tags[0][1], time // 1000, value) for series, time, value in parsed.batch.points()]
    return found


WANTED = [(record["sensor"], record["at"], record["reading"]) for record in RECORDS]


@pytest.mark.parametrize("block", [1, 1000, 5000, 100_000])
@pytest.mark.parametrize("name", ["null.avro", "deflate.avro", "null.avro.gz"])
def test_messages_hold_every_record_once_and_stay_near_their_size(
    tmp_path: Path, name: str, block: int
) -> None:
    path = tmp_path / name
    raw = avro(name.partition(".")[0])
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    with sizes(block, 1000, slice_=64):
        messages, rejected = read(path)
    assert (readings(messages), rejected) == (WANTED, [])
    assert all(message.source == str(path) for message in messages)
    assert {message.arrival_ms for message in messages} == {int(path.stat().st_mtime * 1000)}
    assert max(len(message.text) for message in messages) < block + 1000
    if name.startswith("null"):
        header = raw.index(b"\x00", raw.index(b"avro.schema")) + 17
        for message in messages:
            assert raw[message.offset + header :].startswith(message.text[header:])


@pytest.mark.parametrize("block", [100, 100_000])
def test_what_is_before_corruption_is_kept(tmp_path: Path, block: int) -> None:
    path = tmp_path / "corrupt.avro"
    raw = avro("null")
    sync = raw[-16:]
    third = [at for at in range(len(raw)) if raw.startswith(sync, at)][3]  # the end of the third block
    path.write_bytes(raw[:third] + b"\xff" * 16 + raw[third + 16 :])
    with sizes(block, 50):
        messages, (rejected,) = read(path)
    found = readings(messages)
    assert 0 < len(found) < 400
    assert found == WANTED[: len(found)]
    assert (rejected.reason, rejected.stage, rejected.source) == (Reason.CORRUPT_FILE, Stage.READ, str(path))
    second = [at for at in range(len(raw)) if raw.startswith(sync, at)][2] + 16
    assert rejected.offset == second
    assert rejected.payload == raw[second : second + 50]
    assert f"records before byte {second} are stored" in rejected.message


@pytest.mark.parametrize("name", ["cut.avro", "cut.avro.gz"])
def test_a_truncated_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    raw = avro("null")
    path.write_bytes(gzip.compress(raw)[:-12] if name.endswith(".gz") else raw[:-5])
    with sizes(1000, 1000, slice_=16):
        messages, (rejected,) = read(path)
    found = readings(messages)
    assert 300 < len(found) < 400
    assert found == WANTED[: len(found)]
    assert rejected.reason is Reason.TRUNCATED_FILE
    assert raw[rejected.offset :].startswith(rejected.payload)


def test_lines_are_no_container(tmp_path: Path) -> None:
    path = tmp_path / "lines.avro"
    path.write_bytes(b"put sys.cpu 1356998400 5 host=web01\n")
    messages, (rejected,) = read(path)
    assert (messages, rejected.reason, rejected.offset) == ([], Reason.CORRUPT_FILE, 0)
    assert rejected.payload == path.read_bytes()


@pytest.mark.parametrize(
    ("form", "options", "content"),
    [
        ("avro", {"avro_fields": FIELDS}, avro("deflate")),
        (
            "influx",
            {"influx_precision": "s", "influx_metric": "{field}", "influx_booleans": "reject"},
            b"".join(
                b"x,sensor=%b temperature=%r,other=t %d\n" % (r["sensor"].encode(), r["reading"], r["at"])
                for r in RECORDS
            ),
        ),
    ],
)
def test_from_files_to_points_in_a_pipeline(
    tmp_path: Path, form: str, options: dict[str, Any], content: bytes
) -> None:
    (tmp_path / "points").write_bytes(content)
    framing = message_format(form, options).framing

    def build(root: beam.Pipeline) -> dict[str, beam.PCollection[Any]]:
        read = root | ReadBlocks([str(tmp_path / "points")], framing)
        parsed = read.main | "Parse" >> rejecting(ParseFn(form, options), PointBatch)
        return {"batches": parsed.main, "rejected": parsed[REJECTED], "unread": read[REJECTED]}

    with sizes(1000, 1000):
        outputs = eagerly(build)
    found = [point for batch in outputs["batches"] for point in batch.points()]
    assert sorted((series.tags[0][1], time // 1000, value) for series, time, value in found) == sorted(WANTED)
    assert {series.metric for series, _, _ in found} == {"temperature"}
    assert not outputs["unread"]
    assert len(outputs["rejected"]) == (400 if form == "influx" else 0)  # the boolean of each line
