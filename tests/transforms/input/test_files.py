"""Files into blocks of whole lines: each line once, with its offset, whatever the sizes and cuts."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.io.filesystem import FileMetadata
from hypothesis import given
from hypothesis import strategies as st

from tests.support.inputs.file_lines import (
    COMPRESS,
    gzip_bytes,
    length,
    lines_in,
    lines_of,
    members,
    read,
    sizes,
    zstd_bytes,
)
from tests.support.processes.eager import eagerly
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.points import source_checksum
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.formats import Framing, Message
from timebeam.transforms.flow.steps import REJECTED
from timebeam.transforms.input import files
from timebeam.transforms.input.files import FileSpan, ReadBlocks, blocks_by_arrival, match


def rejected_lines(rejected: list[Rejected]) -> list[tuple[int, bytes]]:
    """(offset, payload) of lines rejected as too long; asserts that nothing else was rejected."""
    assert {(one.reason, one.stage) for one in rejected} <= {(Reason.LINE_TOO_LONG, Stage.READ)}
    return sorted((one.offset, one.payload) for one in rejected)


def check(path: Path, content: bytes, line_bytes: int, seed: int = 0) -> None:
    """Asserts that a file gives each line of its content once; longer ones as rejections."""
    messages, rejected = read(path, seed)
    assert all(message.source == str(path) for message in messages)
    assert all(one.source == str(path) for one in rejected)
    lines = lines_of(content)
    assert lines_in(messages) == [line for line in lines if length(line[1]) <= line_bytes]
    long = [(offset, line[:line_bytes]) for offset, line in lines if length(line) > line_bytes]
    assert rejected_lines(rejected) == long


SUFFIXES = st.sampled_from(sorted(COMPRESS))
PADDINGS = {".gz": (0, 1, 512, 5000), ".bz2": (0, 3), ".zst": (0, 3)}
LINES = b"".join(b"line %d\n" % number for number in range(40))
ENDS = st.sampled_from([b"\n", b"\n", b"\r\n"])
LINE = st.one_of(
    st.binary(max_size=8).map(lambda raw: raw.replace(b"\n", b"")),
    st.integers(0, 60).map(lambda size: bytes(97 + i % 26 for i in range(size))),
)


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    """Lines of any length, also none, with or without the last newline."""
    lines = draw(st.lists(st.tuples(LINE, ENDS), max_size=12))
    content = b"".join(line + end for line, end in lines)
    return content if draw(st.booleans()) else content.rstrip(b"\r\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@given(contents(), st.integers(1, 40), st.integers(1, 3), st.integers(1, 64), st.integers())
def test_spans_of_a_plain_file_hold_each_line_once(
    folder: Path, content: bytes, block: int, blocks_a_span: int, line_bytes: int, seed: int
) -> None:
    path = folder / "plain.txt"
    path.write_bytes(content)
    with sizes(block, line_bytes, blocks_a_span):
        check(path, content, line_bytes, seed)


def test_a_line_at_the_limit_is_kept_and_one_byte_more_is_not(folder: Path) -> None:
    path = folder / "limit.txt"
    for last in (b"\n", b""):
        content = b"a" * 10 + b"\n" + b"b" * 11 + b"\n" + b"c" * 10 + last
        path.write_bytes(content)
        for block in range(1, 36):
            with sizes(block, 10):
                messages, rejected = read(path)
            assert lines_in(messages) == [(0, b"a" * 10 + b"\n"), (23, b"c" * 10 + last)]
            assert rejected_lines(rejected) == [(11, b"b" * 10)]


def test_a_line_over_many_spans_is_rejected_once(folder: Path) -> None:
    """Also with the sizes in use, at which the end of the long line is looked for 64 KiB at a time."""
    path = folder / "long.txt"
    before, after = b"put before 1 1 host=a\n", b"put after 1 1 host=a\n"
    content = before + b"x" * 300_000 + b"\n" + after
    path.write_bytes(content)
    with sizes(10_000, 1000):
        messages, (rejected,) = read(path)
    assert lines_in(messages) == [(0, before), (len(content) - len(after), after)]
    assert (rejected.offset, rejected.payload) == (len(before), b"x" * 1000)
    path.write_bytes(before + b"y" * (2 << 20) + b"\n" + after)
    messages, (rejected,) = read(path)
    assert [line for _, line in lines_in(messages)] == [before, after]
    assert (rejected.offset, rejected.payload) == (len(before), b"y" * (1 << 20))
    assert "1048576" in rejected.message


def test_blocks_stay_near_their_size(folder: Path) -> None:
    content = b"".join(b"line %d\n" % number for number in range(2000))
    for name, stored in (("size.txt", content), ("size.txt.gz", gzip.compress(content))):
        path = folder / name
        path.write_bytes(stored)
        with sizes(1000, 100, slice_=64):
            messages, _ = read(path)
        assert lines_in(messages) == lines_of(content)
        most = 1000 + 100 if path.suffix == ".txt" else 1000 + len(content) // 8
        assert max(len(message.text) for message in messages) <= most


@given(contents(), SUFFIXES, st.lists(st.integers(0, 500), max_size=3), st.data())
def test_compressed_files_hold_the_same_lines(
    folder: Path, content: bytes, suffix: str, cuts: list[int], data: st.DataObject
) -> None:
    """Any number of members, streams or frames; zero bytes behind; whatever comes at once."""
    padding = bytes(data.draw(st.sampled_from(PADDINGS[suffix])))
    path = folder / f"several{suffix}"
    path.write_bytes(b"".join(members(content, cuts, suffix)) + padding)
    line_bytes = data.draw(st.integers(1, 64))
    with sizes(data.draw(st.integers(1, 50)), line_bytes, slice_=data.draw(st.integers(1, 40))):
        check(path, content, line_bytes)


def test_frames_to_be_skipped_are(folder: Path) -> None:
    """pzstd writes such a frame before each of its own."""
    path = folder / "skip.zst"
    skipped = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"size"
    path.write_bytes(skipped + zstd_bytes(b"a\n") + skipped + zstd_bytes(b"b\n"))
    check(path, b"a\nb\n", 100)


def test_spans_cover_a_file_in_steps(folder: Path) -> None:
    path = folder / "steps.txt"
    path.write_bytes(b"x\n" * 25)
    (file,) = match([str(path)])
    modified_ms = int(file.last_updated_in_seconds * 1000)
    with sizes(10, 100, blocks_a_span=2):
        assert list(files.spans(file)) == [
            FileSpan(str(path), 0, 20, modified_ms),
            FileSpan(str(path), 20, 40, modified_ms),
            FileSpan(str(path), 40, 50, modified_ms),
        ]


def test_a_file_without_modification_time_is_rejected() -> None:
    with pytest.raises(ValueError, match="modification time"):
        list(files.spans(FileMetadata("gs://bucket/file", 10)))


def test_a_pattern_without_files_is_an_error(folder: Path) -> None:
    (folder / "there.txt").write_bytes(b"x\n")
    with pytest.raises(FileNotFoundError, match=r"nowhere\*"):
        match([str(folder / "there.txt"), str(folder / "nowhere*")])


def test_a_pattern_without_a_folder_is_one_of_this_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "put1.txt").write_text("x")
    monkeypatch.chdir(tmp_path)
    assert [Path(file.path).name for file in match(["put*.txt", "put1.txt"])] == ["put1.txt"]


def test_a_file_that_two_patterns_match_is_read_once(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.json"):
        (tmp_path / name).write_bytes(b"x\n")
    found = match([str(tmp_path / "*.txt"), str(tmp_path / "a*"), str(tmp_path / "a.txt")])
    assert [file.path for file in found] == [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]


def test_files_of_one_millisecond_come_in_the_order_in_which_they_win(tmp_path: Path) -> None:
    """Whichever is older by microseconds, which no cell timestamp tells."""
    paths = sorted((str(tmp_path / name) for name in "abcd"), key=source_checksum)
    for age, path in enumerate(paths):
        Path(path).write_bytes(b"line\n")
        os.utime(path, ns=(0, 1_700_000_000_000_500_000 - 10_000 * age))
    blocks = list(blocks_by_arrival(match([str(tmp_path / "*")]), Framing.LINES))
    assert [block.source for block in blocks] == paths


def test_read_blocks_in_a_pipeline(tmp_path: Path) -> None:
    contents_of = {
        "a.txt": b"".join(b"a line %d\n" % number for number in range(500)),
        "b.txt": b"",
        "c.txt.gz": b"first\nsecond\n" + b"z" * 2000 + b"\nlast",
        "d.txt.bz2": b"read once\n",
    }
    for name, content in contents_of.items():
        (tmp_path / name).write_bytes(COMPRESS.get(Path(name).suffix, bytes)(content))
    (tmp_path / "e.txt.gz").write_bytes(gzip_bytes(LINES)[:-9])

    def build(root: beam.Pipeline) -> dict[str, beam.PCollection[Any]]:
        outputs = root | ReadBlocks([str(tmp_path / "*"), str(tmp_path / "d*")])
        return {"blocks": outputs.main, "rejected": outputs[REJECTED]}

    with sizes(1000, 1000, blocks_a_span=2):
        outputs = eagerly(build)
    by_source: dict[str, list[Message]] = {}
    for message in outputs["blocks"]:
        by_source.setdefault(Path(message.source).name, []).append(message)
        assert message.arrival_ms == int(Path(message.source).stat().st_mtime * 1000)
    assert lines_in(by_source["a.txt"]) == lines_of(contents_of["a.txt"])
    assert lines_in(by_source["c.txt.gz"]) == [(0, b"first\n"), (6, b"second\n"), (2014, b"last")]
    assert lines_in(by_source["d.txt.bz2"]) == [(0, b"read once\n")]
    kept = lines_in(by_source["e.txt.gz"])
    assert len(kept) > 30
    assert kept == lines_of(LINES)[: len(kept)]
    assert sorted((Path(one.source).name, one.reason) for one in outputs["rejected"]) == [
        ("c.txt.gz", Reason.LINE_TOO_LONG),
        ("e.txt.gz", Reason.TRUNCATED_FILE),
    ]
