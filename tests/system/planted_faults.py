"""Plants twenty plausible faults, one after another, into a copy of the tree: tests must catch each.

    python -m tests.system.planted_faults
    python -m tests.system.planted_faults --only 3 7

A fault is a change of one place that a careless edit could make. The tests that are run for it are those of
its room, not of the whole tree; a fault is caught if at least one of them fails. Exit code 1: a fault was not
caught, or its place is no longer in the code, so that the table below must be kept up.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_COPIED = ("schema", "transforms", "pipelines", "timebeam", "tests", "examples", "docs", "templates")


class Fault(NamedTuple):
    """A fault: in `path`, `right` becomes `wrong`; one of `tests` must fail."""

    what: str
    path: str
    right: str
    wrong: str
    tests: str


FAULTS = (
    Fault(
        "an earlier arrival wins a slot",
        "schema/core/point_fragments.py",
        "by_arrival = np.argsort(arrivals_ms, kind=",
        "by_arrival = np.argsort(-arrivals_ms, kind=",
        "tests/schema/core tests/schema/stores",
    ),
    Fault(
        "the salt takes Java's bytes as unsigned",
        "schema/stores/opentsdb/keys.py",
        "(byte - 256 if byte > 127 else byte)",
        "byte",
        "tests/schema/stores/opentsdb",
    ),
    Fault(
        "tags stay in the order of their names",
        "schema/stores/opentsdb/keys.py",
        'b"".join(sorted(key + value for key, value in tags))',
        'b"".join(key + value for key, value in tags)',
        "tests/schema/stores/opentsdb",
    ),
    Fault(
        "integers of fewer bytes lose their sign",
        "schema/stores/opentsdb/columns/point_elements.py",
        "bits = (self.raws.view(np.int64) << shift) >> shift",
        "bits = self.raws.view(np.int64)",
        "tests/schema/stores/opentsdb",
    ),
    Fault(
        "a qualifier of milliseconds is taken for seconds",
        "schema/stores/opentsdb/columns/point_elements.py",
        "seconds = np.where(in_ms, (offsets_ms << 6) | MS_FLAG, seconds)",
        "pass",
        "tests/schema/stores/opentsdb",
    ),
    Fault(
        "a request takes one row too many",
        "transforms/bigtable/write_rows.py",
        "size + count > MUTATIONS",
        "size > MUTATIONS",
        "tests/transforms/bigtable",
    ),
    Fault(
        "rows are not sent again after a passing error",
        "transforms/bigtable/write_rows.py",
        "repeated.append(pending[index])",
        "pass",
        "tests/transforms/bigtable tests/reliability",
    ),
    Fault(
        "a UID that a name has is given to the next name too",
        "transforms/opentsdb/assign_uids.py",
        "if created and forward != number.uid:",
        "if created:",
        "tests/transforms/opentsdb tests/transforms/ingest tests/reliability/test_uid_faults.py",
    ),
    Fault(
        "names without UIDs are created whatever the options say",
        "transforms/opentsdb/assign_uids.py",
        "elif not self._policy.creates(name.kind):",
        "elif False:",
        "tests/transforms/opentsdb tests/transforms/ingest tests/reliability/test_uid_faults.py",
    ),
    Fault(
        "a lease is held by the process that came last",
        "transforms/care/range_leases.py",
        "other.ticket < self.ticket",
        "other.ticket > self.ticket",
        "tests/transforms/care",
    ),
    Fault(
        "a deletion takes a point that arrived after its dry run",
        "schema/core/row_deletion.py",
        "return inside & (arrivals_ms <= self.newest_ms)",
        "return inside",
        "tests/schema/core tests/schema/stores tests/transforms/care tests/pipelines/commands",
    ),
    Fault(
        "a deletion leaves its last millisecond",
        "schema/core/row_deletion.py",
        "(times_ms <= self.last_ms)",
        "(times_ms < self.last_ms)",
        "tests/schema/core tests/schema/stores tests/transforms/care",
    ),
    Fault(
        "the upper median is the lower one",
        "schema/query/downsample.py",
        "[firsts + _number_counts(values, firsts) // 2]",
        "[firsts + (_number_counts(values, firsts) - 1) // 2]",
        "tests/schema/query",
    ),
    Fault(
        "an interval of a downsampling starts at its first point",
        "schema/query/downsample.py",
        "return times_ms // how.interval_ms * how.interval_ms",
        "return times_ms - times_ms[0] % how.interval_ms",
        "tests/schema/query",
    ),
    Fault(
        "linear interpolation takes the value before",
        "schema/query/aggregate.py",
        "values[left_neighbours + 1] - values[left_neighbours],",
        "values[left_neighbours] - values[left_neighbours],",
        "tests/schema/query",
    ),
    Fault(
        "a reset of a counter is a negative rate",
        "schema/query/aggregate.py",
        "has_reset = differences < 0",
        "has_reset = differences > np.inf",
        "tests/schema/query",
    ),
    Fault(
        "a bucket of a rollup takes the first point of the next",
        "schema/rollup/buckets.py",
        "(self.starts_ms >= start_ms) & (self.starts_ms < end_ms)",
        "(self.starts_ms >= start_ms) & (self.starts_ms <= end_ms)",
        "tests/schema/rollup tests/transforms/rollup",
    ),
    Fault(
        "a carry of an exact sum is lost",
        "schema/rollup/exact_sum.py",
        "digits[place - 1] += digits[place] >> _BITS",
        "digits[place - 1] += 0",
        "tests/schema/rollup",
    ),
    Fault(
        "rollups are read where raw points are newer",
        "schema/query/choose_rollups.py",
        "if first_ms < until_ms:",
        "if False:",
        "tests/schema/query tests/transforms/query",
    ),
    Fault(
        "an archive has the points of an hour twice",
        "schema/archive/view.py",
        "reached_ms = max(archived_to_ms + 1, window[0])",
        "reached_ms = window[0]",
        "tests/schema/archive tests/transforms/care tests/states",
    ),
)


def fails(folder: Path, tests: Sequence[str]) -> bool:
    """Whether one of the tests fails."""
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )
    if ran.returncode not in (0, 1):  # no test ran
        raise SystemExit(ran.stdout + ran.stderr)
    return ran.returncode == 1


def is_caught(folder: Path, fault: Fault) -> bool:
    """Whether a test fails in a copy of the tree with the fault, which is taken out again."""
    module = folder / fault.path
    text = module.read_text("utf-8")
    if text.count(fault.right) < 1:
        raise SystemExit(f"{fault.path} has no {fault.right!r} any more: keep the table of faults up")
    module.write_text(text.replace(fault.right, fault.wrong), "utf-8")
    try:
        return fails(folder, fault.tests.split())
    finally:
        module.write_text(text, "utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a line for each fault; 1 if one was not caught."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of faults, from 1; by default all")
    chosen = parser.parse_args(argv).only or range(1, len(FAULTS) + 1)
    missed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in _COPIED:
            shutil.copytree(ROOT / part, folder / part, symlinks=True)
        for path in (*ROOT.glob("*.py"), *ROOT.glob("*.toml"), *ROOT.glob("*.md"), *ROOT.glob("*.lock")):
            shutil.copy(path, folder)
        tests = sorted({name for number in chosen for name in FAULTS[number - 1].tests.split()})
        if fails(folder, tests):
            raise SystemExit("a test fails without a fault")
        for number in chosen:
            fault = FAULTS[number - 1]
            caught = is_caught(folder, fault)
            missed += not caught
            print(f"{number:2} {'caught' if caught else 'NOT CAUGHT'}: {fault.what}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} faults caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
