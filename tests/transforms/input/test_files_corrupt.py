"""Truncated and corrupt compressed files: what is readable is kept, and the rest said to be lost."""

from __future__ import annotations

import itertools
import random
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.inputs.file_lines import COMPRESS, lines_in, lines_of, members, read, sizes
from timebeam.schema.bits import compression
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.rejections import Stage


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corrupt")


def readable(stored: bytes) -> bytes:
    """What of a truncated gzip file can be decompressed."""
    found = b""
    while stored:
        decompressor = zlib.decompressobj(wbits=31)
        found += decompressor.decompress(stored)
        stored = decompressor.unused_data
    return found


TEXT = b"".join(b"put sys.cpu %d %d host=web%02d\n" % (1356998400 + i, i * i, i % 7) for i in range(40))


def check_kept(path: Path, content: bytes, at_least: int, reason: Reason) -> None:
    """Asserts that the first lines of a content were kept, and how the rest was rejected.

    Args:
      at_least: the whole lines of so many bytes must have been kept.
    """
    messages, rejected = read(path)
    (one,) = rejected
    assert (one.reason, one.stage, one.source) == (reason, Stage.READ, str(path))
    kept = sum(len(message.text) for message in messages)
    assert kept >= content.rfind(b"\n", 0, at_least) + 1
    assert lines_in(messages) == lines_of(content[:kept])
    assert content[:kept].endswith(b"\n") or not kept
    assert one.offset == kept
    assert one.payload == content[kept : kept + len(one.payload)]
    assert b"\n" not in one.payload


@pytest.mark.parametrize("suffix", sorted(COMPRESS))
@pytest.mark.parametrize("slice_", [7, 4096])
def test_truncated_anywhere_the_readable_lines_are_kept(folder: Path, suffix: str, slice_: int) -> None:
    """In the header, the data, the check sum; between members a missing one cannot be noticed."""
    path = folder / f"truncated{suffix}"
    pieces = members(TEXT, [333, 800], suffix)
    whole = [0, *itertools.accumulate(map(len, pieces))]
    decompressed = [0, 333, 800, len(TEXT)]
    stored = b"".join(pieces)
    for cut in range(1, len(stored)):
        path.write_bytes(stored[:cut])
        with sizes(200, 100, slice_=slice_):
            if cut in whole:
                messages, rejected = read(path)
                kept = TEXT[: decompressed[whole.index(cut)]]
                assert (lines_in(messages), rejected) == (lines_of(kept), [])
                continue
            at_least = decompressed[sum(end <= cut for end in whole) - 1]
            if suffix == ".gz":
                at_least = len(readable(stored[:cut]))
            check_kept(path, TEXT, at_least, Reason.TRUNCATED_FILE)


def test_lines_before_corruption_are_kept(folder: Path) -> None:
    """Corruption that shows where it is: a block of deflate of a type that does not exist."""
    path = folder / "corrupt.gz"
    content = b"".join(b"%032x\n" % random.Random(number).getrandbits(128) for number in range(3000))
    compressor = zlib.compressobj(wbits=31)
    stored = compressor.compress(content) + compressor.flush(zlib.Z_FULL_FLUSH)
    path.write_bytes(stored + b"\xff" * 10_000)
    assert len(stored) > 3 * compression._SLICE
    at_least = len(readable(stored[: len(stored) // compression._SLICE * compression._SLICE]))
    check_kept(path, content, at_least, Reason.CORRUPT_FILE)


@pytest.mark.parametrize("suffix", sorted(COMPRESS))
def test_members_before_a_corrupt_one_are_kept(folder: Path, suffix: str) -> None:
    path = folder / f"corrupt{suffix}"
    first, second, third = members(TEXT, [333, 800], suffix)
    path.write_bytes(first + second + b"garbage" + third)
    check_kept(path, TEXT, 800, Reason.CORRUPT_FILE)
    check_sum = second[:-4] + bytes([second[-4] ^ 1]) + second[-3:]
    path.write_bytes(first + check_sum + third)
    check_kept(path, TEXT, 333, Reason.CORRUPT_FILE)


@given(st.sampled_from(sorted(COMPRESS)), st.integers(0), st.integers(1, 255))
def test_no_changed_byte_goes_unnoticed(folder: Path, suffix: str, position: int, change: int) -> None:
    path = folder / f"changed{suffix}"
    stored = bytearray(b"".join(members(TEXT, [800], suffix)))
    stored[position % len(stored)] ^= change
    path.write_bytes(stored)
    messages, rejected = read(path)
    if lines_in(messages) == lines_of(TEXT):
        assert len(rejected) <= 1
    else:
        assert [one.reason for one in rejected if one.reason is not Reason.LINE_TOO_LONG] in (
            [Reason.CORRUPT_FILE],
            [Reason.TRUNCATED_FILE],
        )


def test_a_compressed_file_of_zeros_is_corrupt(folder: Path) -> None:
    """What a crash of the writer's machine leaves; only behind data are zeros padding."""
    path = folder / "zeros.gz"
    path.write_bytes(bytes(5000))
    messages, (rejected,) = read(path)
    assert (messages, rejected.reason) == ([], Reason.CORRUPT_FILE)
