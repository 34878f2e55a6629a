"""What the code between bytes and packed rows can do: one process, one core, no pipeline, no Bigtable.

    python -m benchmarks.kernel --points 400000

Blocks of lines, cut as the pipelines cut files, are parsed, encoded into the fragments of rows, and
packed into compacted rows. Prints one JSON document; times are wall times.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.generate import FORMATS, Load, write
from timebeam.schema.layouts import Name, Packing, Row, RowFragment, SeriesKey
from timebeam.schema.layouts.opentsdb.layout import OpenTsdb
from timebeam.schema.messages import Message, message_format
from timebeam.schema.points import PointBatch, Series
from timebeam.transforms.input.files import blocks, match, spans

REPEATS = 5
_PACKAGES = ("apache-beam", "google-cloud-bigtable", "grpcio", "numpy", "pyarrow")


def machine() -> dict[str, object]:
    """What the figures depend on: cores, CPU model, versions."""
    model = re.search(
        r"^model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE
    )
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": model[1] if model else "unknown",
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
    }


def best_and_median(values: Sequence[float]) -> dict[str, float]:
    """Both statistics of the times of some turns."""
    return {"best": round(min(values), 6), "median": round(statistics.median(values), 6)}


def speed(seconds: Sequence[float], points: int) -> dict[str, object]:
    """Seconds of every turn; points per second and ns per point of the best and of the median one."""
    turns = best_and_median(seconds)
    return {
        "seconds": [round(turn, 3) for turn in seconds],
        "points_per_second": {name: round(points / turn) for name, turn in turns.items()},
        "ns_per_point": {name: round(turn / points * 1e9, 1) for name, turn in turns.items()},
    }


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
        for name in self._layout.names(series):
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


def pack(fragments: Sequence[RowFragment], layout: OpenTsdb) -> list[Row]:
    """Compacted rows of the fragments, grouped by their row."""
    rows: dict[tuple[str, bytes], list[bytes]] = {}
    for table, key, packed in fragments:
        rows.setdefault((table, key), []).append(packed)
    return [layout.pack(table, key, packed, Packing.COMPACTED) for (table, key), packed in rows.items()]


def kernel(messages: Sequence[Message], form: str, layout: OpenTsdb, keys: Keys) -> list[RowFragment]:
    """Blocks to the packed rows of each block, one after the other as a worker does it."""
    parser = message_format(form)
    fragments: list[RowFragment] = []
    for message in messages:
        fragments += encode([parser.parse(message).batch], layout, keys)
    return fragments


def all_together(messages: Sequence[Message], form: str, layout: OpenTsdb, keys: Keys) -> list[Row]:
    """Blocks to rows: the kernel, and the rows' fragments of all blocks joined into cells."""
    return pack(kernel(messages, form, layout, keys), layout)


def measure(form: str, points: int) -> dict[str, object]:
    """The figures of one format.

    The stages take turns, so that a slow moment of the machine meets all of them alike.

    Raises:
      SystemExit: the packed rows do not hold every point once.
    """
    messages, layout = read_blocks(Load(points, format=form)), OpenTsdb()
    keys, batches = Keys(layout), parse(messages, form)
    rows = all_together(messages, form, layout, keys)
    any_series = batches[0].series[0]
    stored = sum(len(layout.decode(row, any_series).batch) for row in rows)
    if stored != points:
        raise SystemExit(f"{form}: {points} points were packed, but the rows hold {stored}")
    stages: dict[str, Callable[[], object]] = {
        "parse": lambda: parse(messages, form),
        "encode": lambda: encode(batches, layout, keys),
        "kernel": lambda: kernel(messages, form, layout, keys),
        "all": lambda: all_together(messages, form, layout, keys),
    }
    seconds: dict[str, list[float]] = {name: [] for name in stages}
    for turn in range(REPEATS):
        print(f"{form}: turn {turn + 1} of {REPEATS}", file=sys.stderr)
        for name, stage in stages.items():
            start = time.perf_counter()
            stage()
            seconds[name].append(time.perf_counter() - start)
    size = sum(len(message.text) for message in messages)
    figures: dict[str, object] = {
        "bytes_per_line": round(size / points, 1),
        "blocks": len(messages),
        "rows": len(rows),
    }
    return figures | {name: speed(times, points) for name, times in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, default=400_000, help="lines per format (default: %(default)s)")
    points = parser.parse_args().points
    if points < 1:
        parser.error("--points must be 1 at least")
    figures: dict[str, object] = {"machine": machine(), "points": points, "series": Load.series}
    figures |= {"turns": REPEATS, "formats": {form: measure(form, points) for form in FORMATS}}
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
