"""What the code between bytes and packed rows can do: one process, one core, no pipeline, no Bigtable.

    python -m benchmarks.kernel --points 400000

Blocks of lines, cut as the pipelines cut files, are parsed, encoded into the fragments of rows, and
packed into compacted rows.

| figure | is |
|---|---|
| `parse` | bytes of blocks to points in columns; its ratio is to `json.loads` and the like, line by line |
| `encode` | points to the packed rows of each block; series keys are cached |
| `parse` of producers | requests to points, series cached; protobuf's parser makes only its objects |
| `kernel` | both: the bytes of a block to the packed rows of that block |
| `all` | also joins the rows of all blocks into cells, as mutations in bytes |
| `CPU s/M points` | processor seconds of `all` for a million points |
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import bench, naive, producers
from benchmarks.generate import FORMATS, Load, write
from timebeam.schema.core.point_fragments import Encoded, Name, Packing, RowFragment
from timebeam.schema.core.points import PointBatch, Series, SeriesKey
from timebeam.schema.core.rows import EncodedRow
from timebeam.schema.core.selection import Selected
from timebeam.schema.formats import Message, message_format
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.transforms.bigtable.mutation_bytes import plain_row
from timebeam.transforms.ingest.encode_group_pack import PackFn
from timebeam.transforms.input.files import blocks, match, spans

_NAIVE_LINES = 20_000


class Keys:
    """The key of every series seen, made on first sight with UIDs counted from 1."""

    def __init__(self, layout: OpenTsdb) -> None:
        self._layout = layout
        self._uids: dict[Name, bytes] = {}
        self._keys: dict[Series, SeriesKey] = {}

    def keys_of(self, batch: PointBatch) -> list[SeriesKey]:
        """The key of each series of a batch."""
        return [self._keys.get(series) or self._add(series) for series in batch.series]

    def _add(self, series: Series) -> SeriesKey:
        for name in self._layout.uids.names(series) if self._layout.uids else ():
            if name not in self._uids:
                self._uids[name] = (len(self._uids) + 1).to_bytes(3, "big")
        key = self._keys[series] = self._layout.series_key(series, self._uids)
        return key


def read_blocks(load: Load) -> list[Message]:
    """The load as the blocks that the pipelines would read out of a file of it."""
    with tempfile.TemporaryDirectory(prefix="timebeam-kernel-") as folder:
        path = write(load, Path(folder) / "points")[0]
        messages = [block for file_part in spans(match([str(path)])[0]) for block in blocks(file_part)]
    return [block for block in messages if isinstance(block, Message)]


def parse(messages: Sequence[Message], form: str) -> list[PointBatch]:
    """The points of blocks; the caches of the format start empty."""
    parser = message_format(form)
    return [parser.parse(message).batch for message in messages]


def encode(batches: Sequence[PointBatch], layout: OpenTsdb, keys: Keys) -> list[RowFragment]:
    """The fragments of the rows that the batches touch."""
    return [fragment for batch in batches for fragment in layout.encode(batch, keys.keys_of(batch)).fragments]


def pack(fragments: Sequence[RowFragment], layout: OpenTsdb) -> list[EncodedRow]:
    """The mutations of compacted rows of the fragments, as the step of a pipeline makes them."""
    step = PackFn(layout, Packing.COMPACTED)
    step.start_bundle()
    rows = list(step.process(Encoded(fragments, (), 0)))
    return [*rows, *(row.value for row in step.finish_bundle())]


def kernel(messages: Sequence[Message], form: str, layout: OpenTsdb, keys: Keys) -> list[RowFragment]:
    """Blocks to the packed rows of each block, one after the other as a worker does it."""
    parser = message_format(form)
    fragments: list[RowFragment] = []
    for message in messages:
        fragments += encode([parser.parse(message).batch], layout, keys)
    return fragments


def all_together(messages: Sequence[Message], form: str, layout: OpenTsdb, keys: Keys) -> list[EncodedRow]:
    """Blocks to rows: the kernel, and the rows' fragments of all blocks joined into cells."""
    return pack(kernel(messages, form, layout, keys), layout)


def of_format(form: str, points: int, turns: int) -> bench.Figures:
    """The figures of one format.

    The stages take turns, so that a slow moment of the machine meets all of them alike.

    Raises:
      bench.BenchmarkError: the packed rows do not hold every point once.
    """
    messages, layout = read_blocks(Load(points, format=form)), OpenTsdb()
    keys, batches = Keys(layout), parse(messages, form)
    rows = all_together(messages, form, layout, keys)
    any_series = batches[0].series[0]
    stored = sum(len(layout.decode_rows([Selected(plain_row(row), any_series)]).batch) for row in rows)
    if stored != points:
        raise bench.BenchmarkError(f"{form}: {points} points were packed, but the rows hold {stored}")
    stages: dict[str, Callable[[], object]] = {
        "parse": lambda: parse(messages, form),
        "encode": lambda: encode(batches, layout, keys),
        "kernel": lambda: kernel(messages, form, layout, keys),
        "all": lambda: all_together(messages, form, layout, keys),
    }
    lines = messages[0].text.decode().splitlines()[:_NAIVE_LINES]
    by_line = naive.PARSERS.get(form)
    figures: dict[str, list[float]] = {}
    for _ in range(turns):
        for name, stage in stages.items():
            cpu = time.process_time()
            seconds = bench.timed(stage)
            figures.setdefault(f"{name}, points/s", []).append(points / seconds)
        figures.setdefault("CPU s/M points", []).append((time.process_time() - cpu) / points * 1e6)
        if by_line:
            each = bench.timed(lambda: [by_line(line) for line in lines]) / len(lines)
            speed = figures["parse, points/s"][-1]
            figures.setdefault("times as fast as line by line, parse", []).append(each * speed)
    return figures | {"bytes/line": [sum(len(message.text) for message in messages) / points]}


def of_producer(form: str, turns: int) -> bench.Figures:
    """The figures of reading the requests of a producer, beside protobuf's own parser.

    Processor time; each turn reads every request once with each of the two, the caches of series filled.

    Raises:
      bench.BenchmarkError: a point is missing.
    """
    messages, parse_only = producers.load(form)
    parser = message_format(form)
    points = sum(len(parser.parse(message).batch) for message in messages)
    if points % len(messages) or points < 2_000 * len(messages):
        raise bench.BenchmarkError(f"{form}: {points} points of {len(messages)} requests")
    figures: dict[str, list[float]] = {}
    for _ in range(turns):
        for name, stage in (
            ("parse, points/s", lambda: [parser.parse(message) for message in messages]),
            ("protobuf's parser alone, points/s", parse_only),
        ):
            start = time.process_time()
            stage()
            figures.setdefault(name, []).append(points / (time.process_time() - start))
    return figures | {"bytes/point": [sum(len(message.text) for message in messages) / points]}


def measure(folder: Path, *, points: int = 400_000, turns: int = 5) -> bench.Cases:
    """The figures of every format."""
    formats = {form: of_format(form, points, turns) for form in FORMATS}
    return formats | {form: of_producer(form, turns) for form in ("prometheus-remote-write", "otlp")}


if __name__ == "__main__":
    sys.exit(bench.main(measure, emulator=False))
