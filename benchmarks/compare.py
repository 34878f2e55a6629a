"""What moved between two files of `make bench`, beyond noise.

    python -m benchmarks.compare OLD.json NEW.json

A figure moved if the values of all new turns are above or below those of all old ones, and the medians
differ by more than a twentieth; with a single turn on one side, by more than a third. Cells, rows and bytes
do not vary: they moved if they differ by half a hundredth.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.bench import is_ratio, number

_EXACT = ("bytes", "cells", "rows")


class Move(NamedTuple):
    """A figure that moved, with the medians of its turns."""

    benchmark: str
    case: str
    name: str
    old: float
    new: float


def has_moved(name: str, old: Sequence[float], new: Sequence[float]) -> bool:
    """Whether the values of a figure differ by more than noise."""
    before, after = statistics.median(old), statistics.median(new)
    change = abs(after - before) / max(abs(before), 1e-9)
    if name.startswith(_EXACT):
        return change > 0.005
    if min(len(old), len(new)) == 1:
        return change > 1 / 3
    return change > 0.05 and (max(old) < min(new) or max(new) < min(old))


def moves(old: dict[str, Any], new: dict[str, Any]) -> Iterator[Move]:
    """The figures that moved, of those that both files have; ratios first."""
    shared = [
        (benchmark, case, name, values, new["benchmarks"][benchmark]["cases"][case][name])
        for benchmark, report in old["benchmarks"].items()
        for case, figures in report["cases"].items()
        for name, values in figures.items()
        if name in new["benchmarks"].get(benchmark, {"cases": {}})["cases"].get(case, {})
    ]
    for benchmark, case, name, before, after in sorted(shared, key=lambda figure: not is_ratio(figure[2])):
        if before and after and has_moved(name, before, after):
            yield Move(benchmark, case, name, statistics.median(before), statistics.median(after))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    options = parser.parse_args()
    old, new = json.loads(options.old.read_text()), json.loads(options.new.read_text())
    for report in (old, new):
        machine = report["machine"]
        print(f"{report['date']} {report['commit']}: {machine['cpu']}, load {machine['load']}")
    for name in old["benchmarks"].keys() & new["benchmarks"].keys():
        if old["benchmarks"][name]["options"] != new["benchmarks"][name]["options"]:
            print(f"{name}: other options, so its figures say little")
    moved = list(moves(old, new))
    for move in moved:
        print(f"{move.benchmark}, {move.case}: {move.name} {number(move.old)} -> {number(move.new)}")
    if not moved:
        print("nothing moved beyond noise")


if __name__ == "__main__":
    main()
