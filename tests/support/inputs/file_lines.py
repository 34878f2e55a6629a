"""Files in blocks, for tests: small sizes, compressed members, and lines by an oracle of one line."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard

from timebeam.schema.bits import compression
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.formats import Message
from timebeam.transforms.input import cut_lines, files
from timebeam.transforms.input.files import match

Lines = list[tuple[int, bytes]]
"""(offset, line with its newline)."""


@contextlib.contextmanager
def sizes(block: int, line: int, blocks_a_span: int = 1, slice_: int = 4096) -> Iterator[None]:
    """Small blocks, lines, parts and slices of compressed bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "BLOCK_BYTES", block)
        patch.setattr(cut_lines, "LINE_BYTES", line)
        patch.setattr(files, "_BLOCKS_A_SPAN", blocks_a_span)
        patch.setattr(compression, "_SLICE", slice_)
        patch.setattr(compression, "_ZSTD_SLICE", slice_)
        yield


def lines_of(content: bytes) -> Lines:
    """The oracle: the lines of a content, by the newlines alone."""
    lines = content.split(b"\n")
    lines = [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    offsets = itertools.accumulate(map(len, lines), initial=0)
    return list(zip(offsets, lines, strict=False))


def length(line: bytes) -> int:
    """Bytes of a line without its newline."""
    return len(line.removesuffix(b"\n"))


def read(path: Path, seed: int = 0) -> tuple[list[Message], list[Rejected]]:
    """All blocks and rejections of a file, its parts read in any order, as workers do."""
    (file,) = match([str(path)])
    parts = list(files.spans(file))
    random.Random(seed).shuffle(parts)
    found = [block for part in parts for block in files.blocks(part)]
    messages = [block for block in found if isinstance(block, Message)]
    return messages, [block for block in found if isinstance(block, Rejected)]


def lines_in(messages: list[Message]) -> Lines:
    """The lines of blocks, by their offset."""
    return sorted((message.offset + at, line) for message in messages for at, line in lines_of(message.text))


def gzip_bytes(data: bytes) -> bytes:
    """One member."""
    return gzip.compress(data, mtime=0)


def zstd_bytes(data: bytes) -> bytes:
    """One frame, with a check sum as the zstd command writes it."""
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


COMPRESS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip_bytes, ".bz2": bz2.compress, ".zst": zstd_bytes}


def members(content: bytes, cuts: list[int], suffix: str) -> list[bytes]:
    """A content cut in pieces, each compressed by itself."""
    bounds = [0, *sorted(cut % (len(content) + 1) for cut in cuts), len(content)]
    return [COMPRESS[suffix](content[start:end]) for start, end in itertools.pairwise(bounds)]
