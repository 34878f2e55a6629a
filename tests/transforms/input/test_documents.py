"""JSON documents over several lines in files, as `json.dump` writes them: every record once, of any size."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from timebeam.schema.bits import compression
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.formats import Message, format_class, message_format
from timebeam.transforms.input import cut_json, cut_lines, files
from timebeam.transforms.input.files import blocks, match, spans

T = 1_356_998_400


def record(name: str, number: int) -> dict[str, Any]:
    return {
        "opentsdb-json": {"metric": "m", "timestamp": T + number, "value": number, "tags": {"h": "a"}},
        "opentsdb-annotations": {"startTime": T + number, "description": f"{number}"},
        "kairosdb-json": {"name": "m", "tags": {"h": "a"}, "datapoints": [[(T + number) * 1000, number]]},
    }[name]


def read(path: Path, name: str) -> tuple[list[int], list[Rejected]]:
    """(the times of all records in s, the rejections) of a file."""
    reader = message_format(name)
    times: list[int] = []
    rejected: list[Rejected] = []
    (file,) = match([str(path)])
    for part in spans(file, format_class(name).framing):
        for block in blocks(part, format_class(name).framing):
            if isinstance(block, Message):
                parsed = reader.parse(block)
                times += [time_ms // 1000 for time_ms in parsed.batch.times_ms.tolist()]
                times += [edit.start for edit in parsed.annotations]
                rejected += parsed.rejected
            else:
                rejected.append(block)
    return times, rejected


def write(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode(), 1) if path.suffix == ".gz" else text.encode())


@pytest.fixture(params=[64, pytest.param(1, marks=pytest.mark.long)], ids=["small", "full"])
def scale(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """By what all limits of sizes are divided, and so must be the sizes of files."""
    divisor: int = request.param
    for module, name in (
        (files, "BLOCK_BYTES"),
        (files, "LARGEST"),
        (cut_json, "LARGEST"),
        (cut_json, "RECORD_BYTES"),
        (cut_json, "_STEP"),
        (cut_lines, "LINE_BYTES"),
        (compression, "_CHUNK"),
        (compression, "_SLICE"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name) // divisor)
    return divisor


NAMES = ["opentsdb-json", "opentsdb-annotations", "kairosdb-json"]


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
@pytest.mark.parametrize("name", NAMES)
def test_an_array_over_several_lines(tmp_path: Path, name: str, suffix: str, scale: int) -> None:
    """With and without a newline at its end; of more than one block."""
    path = tmp_path / f"points{suffix}"
    for count, end in ((3, ""), (3, "\n"), (60_000 // scale, "")):
        write(path, json.dumps([record(name, number) for number in range(count)], indent=2) + end)
        times, rejected = read(path, name)
        assert not rejected
        assert times == [T + number for number in range(count)]


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_document_of_heroic(tmp_path: Path, suffix: str, scale: int) -> None:
    """One object, of more than one block."""
    path = tmp_path / f"points{suffix}"
    for count in (3, 100_000 // scale):
        data = [[(T + number) * 1000, float(number)] for number in range(count)]
        write(path, json.dumps({"series": {"key": "m"}, "data": {"type": "points", "data": data}}, indent=2))
        assert path.suffix == ".gz" or count == 3 or path.stat().st_size > files.BLOCK_BYTES
        times, rejected = read(path, "heroic-json")
        assert not rejected
        assert times == [T + number for number in range(count)]


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_bad_record_of_a_document_has_its_bytes_and_place(tmp_path: Path, suffix: str, scale: int) -> None:
    path = tmp_path / f"points{suffix}"
    points: Sequence[Any] = [record("opentsdb-json", number) for number in range(60_000 // scale)]
    points[59_000 // scale]["value"] = "NaN"
    text = json.dumps(points, indent=2)
    write(path, text)
    times, (rejected,) = read(path, "opentsdb-json")
    assert len(times) == len(points) - 1
    assert rejected.reason is Reason.BAD_NUMBER
    assert json.loads(rejected.payload) == points[59_000 // scale]
    assert text.encode()[rejected.offset :].startswith(rejected.payload)


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_document_of_more_than_64_mib_is_one_rejection(tmp_path: Path, suffix: str, scale: int) -> None:
    path = tmp_path / f"points{suffix}"
    element = json.dumps(record("opentsdb-json", 1), indent=2)
    write(path, "[" + ",\n".join([element] * ((66 << 20) // scale // len(element))) + "]")
    times, (rejected,) = read(path, "opentsdb-json")
    assert rejected.reason is Reason.LINE_TOO_LONG
    assert (56 << 20) // scale < rejected.offset < (64 << 20) // scale
    assert "document of more than" in rejected.message
    assert len(times) == (rejected.offset + 1) // (len(element) + 2)
