"""Decompression stays within the memory that docs/use/ingest.md states: tried in a limited child.

All are long; `test_documents.py` and `test_files_corrupt.py` have what is rejected, of small bounds.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

MIB = 1 << 20

ROOM = 512 * MIB
"""What a child may take beside its imports: the 256 MiB that may be held, and as much to work with."""

PROLOGUE = f"""
import bz2, gzip, json, re, resource, sys, zlib
import zstandard
import timebeam.transforms.input.parse, timebeam.transforms.ingest.declared_rows
from timebeam.schema.formats import FORMATS, Framing, Message, message_format
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rejections import Envelope, Rejected
from timebeam.transforms.input.files import blocks, match, spans
from timebeam.transforms.input.parse import GatherFn, ParseMessagesFn

def limit():
    pages = int(open("/proc/self/statm").read().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + {ROOM},) * 2)

def packed(pattern, size, encoding):
    compressor = {{
        "gzip": lambda: zlib.compressobj(9, wbits=31),
        "zstd": lambda: zstandard.ZstdCompressor().compressobj(),
        "bzip2": bz2.BZ2Compressor,
    }}[encoding]()
    block = pattern * (1048576 // len(pattern))
    data = [compressor.compress(block) for _ in range(size // len(block))]
    return b"".join([*data, compressor.flush()])

def messages(payload, encoding, count):
    envelope = Envelope("1", 1, {{"content-encoding": encoding}})
    return [Message(payload, 1, "s", 0, envelope) for _ in range(count)]

def records(output):
    # neighbours with one reason are rejected together
    more = re.search(r"and ([0-9]+) more records", output.value.message)
    return 1 + int(more[1]) if more else 1

def parse(name, given):
    fn, gather = ParseMessagesFn(name, {{}}), GatherFn()
    fn.setup()
    gather.start_bundle()
    lists = [one for message in given for one in gather.process(message)]
    lists += [value.value for value in gather.finish_bundle()]
    points = rejected = 0
    for held in lists:
        for output in fn.process(held):
            points += len(output) if isinstance(output, PointBatch) else 0
            rejected += 0 if isinstance(output, PointBatch) else records(output)
    print(points, rejected)
"""


def run(program: str, *arguments: str | Path) -> list[int]:
    """Runs a program with little memory; the numbers that it prints."""
    child = subprocess.run(
        [sys.executable, "-c", PROLOGUE + textwrap.dedent(program), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    return [int(number) for number in child.stdout.split()]


long = pytest.mark.long


@long
@pytest.mark.parametrize("name", ["influx", "opentsdb-json"])
def test_many_messages_of_newlines(name: str) -> None:
    program = f"""
        given = messages(packed(b"\\n", 60 << 20, "gzip"), "gzip", 6)
        limit()
        parse({name!r}, given)
    """
    assert run(program) == [0, 0]


@long
def test_many_messages_whose_packing_nothing_announces() -> None:
    """Each is opened when those before it have been parsed."""
    program = """
        payload = packed(b"\\n", 60 << 20, "zstd")
        given = [Message(payload, 1, "s", 0, Envelope(str(each), 1, {})) for each in range(10)]
        limit()
        parse("influx", given)
    """
    assert run(program) == [0, 0]


@long
@pytest.mark.parametrize("line", [b"a\n", b" \r\n"])
def test_a_message_of_millions_of_lines(line: bytes) -> None:
    """Each is rejected, or blank; 3 MiB, since each rejection takes its time."""
    program = f"""
        given = messages(packed({line!r}, 3 << 20, "zstd"), "zstd", 1)
        limit()
        parse("influx", given)
    """
    assert run(program) == [0, 3 * MIB // 2 if line == b"a\n" else 0]


@long
def test_a_message_of_64_mib_of_points() -> None:
    line = b'{"metric":"m","timestamp":1356998400,"value":1,"tags":{"h":"a"}}\n'
    program = f"""
        given = messages(packed({line!r}, 63 << 20, "gzip"), "gzip", 1)
        limit()
        parse("opentsdb-json", given)
    """
    assert run(program) == [63 * (MIB // len(line)), 0]


@pytest.mark.long
def test_more_than_64_mib_are_rejected_whole() -> None:
    program = """
        given = messages(packed(b"m f=1 1\\n", 65 << 20, "gzip"), "gzip", 1)
        limit()
        parse("influx", given)
    """
    assert run(program) == [0, 1]


@long
@pytest.mark.parametrize(("suffix", "encoding"), [(".gz", "gzip"), (".bz2", "bzip2"), (".zst", "zstd")])
def test_a_small_file_of_very_many_newlines(tmp_path: Path, suffix: str, encoding: str) -> None:
    path = tmp_path / f"bomb{suffix}"
    program = f"""
        path = sys.argv[1]
        open(path, "wb").write(packed(b"\\n", 150 << 20, {encoding!r}))
        limit()
        format = message_format("influx")
        (file,) = match([path])
        size = points = 0
        for part in spans(file, format.framing):
            for block in blocks(part, format.framing):
                size += len(block.text)
                points += len(format.parse(block).batch)
        print(size, points)
    """
    assert run(program, path) == [150 * MIB, 0]
