"""Mutants of good messages of every format, read in processes with little memory and time.

    python -m tests.system.mutants
    python -m tests.system.mutants --form influx --count 100
    python -m tests.system.mutants --form influx --number 17

Each is read between two good messages, as a stream reads them. Whatever it is, the process does not end, nor
does anything raise; both good messages are read, and the mutant is points, rejections, or both. (It is
nothing only where a message may hold nothing: no text, no points, fields that the format does not know.)
What fails is kept in `.mutants/`, with the command that tries it again.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import os
import pickle
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from tests.support.inputs.mutants import Attributes, mutant
from tests.support.inputs.samples import Form, forms
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.formats import AUTO, FORMATS
from timebeam.schema.formats.options import RecordEncoding
from timebeam.schema.stores.declared.language.load_declaration import load
from timebeam.transforms.flow.steps import REJECTED
from timebeam.transforms.ingest.declared_rows import RecordMessagesFn
from timebeam.transforms.input.parse import ANNOTATIONS, ParseMessagesFn, pubsub_message

MEMORY = 640 << 20
"""Bytes of address space for a message, beside those after the imports: see `test_small_bombs`."""

SECONDS = 30
"""Of the processor, for one message."""

_KEPT = Path(".mutants")
_SENSOR = Path(__file__).parents[2] / "examples/tables/sensor.toml"
_BATCH = 50
_T = 1_700_000_000_000


class Finding(NamedTuple):
    """What a mutant did that none may do."""

    form: str
    number: int
    why: str


class Seen(NamedTuple):
    """What became of a mutant.

    Attributes:
      outcome: what it is counted as.
      why: what is wrong with it; empty for nothing.
      seconds: of the processor.
      peak: bytes of memory beyond what the process had before.
    """

    number: int
    outcome: str
    why: str
    seconds: float
    peak: int


def made(form: str, number: int) -> tuple[bytes, Attributes]:
    """The mutant of that number."""
    return mutant(random.Random(f"{form} {number}"), forms()[form].samples)


class _Reader:
    """Reads messages of a form as a stream does."""

    def __init__(self, form: Form) -> None:
        self._is_declared = form.name == "records"
        if self._is_declared:
            encoding = RecordEncoding(form.options["encoding"])
            self._fn: Any = RecordMessagesFn(load(_SENSOR.read_text(), _SENSOR.name), encoding)
        else:
            self._fn = ParseMessagesFn(form.name, form.options, FORMATS if form.name == AUTO else ())
            self._fn.setup()
        self._good = form.samples[0]
        self._stored = self.read([(self._good, {}), (b"", {}), (self._good, {})])[0]

    def read(self, messages: Sequence[tuple[bytes, Attributes]]) -> tuple[int, int, list[Rejected]]:
        """(what is stored of the good messages, of the second one, rejections)

        That is: points, edits, or rows of declared tables; rows, which messages may share, are the second's.
        """
        listed = [
            pubsub_message(data, str(number), _T + number, attributes, "s")
            for number, (data, attributes) in enumerate(messages)
        ]
        good, own, rejected = 0, 0, []
        for output in self._fn.process(listed):
            if isinstance(output, PointBatch):
                of_own = np.count_nonzero(output.arrivals_ms == _T + 1)
                good, own = good + len(output) - of_own, own + of_own
            elif getattr(output, "tag", None) == REJECTED:
                rejected.append(output.value)
            elif getattr(output, "tag", None) == ANNOTATIONS:
                of_own = sum(edit.arrival_ms == _T + 1 for edit in output.value)
                good, own = good + len(output.value) - of_own, own + of_own
            else:
                own += 1
        return good, own, rejected

    def judged(self, data: bytes, attributes: Attributes) -> tuple[str, str]:
        """(outcome of a mutant, what is wrong with it)"""
        stored, points, rejected = self.read([(self._good, {}), (data, attributes), (self._good, {})])
        if self._is_declared:
            points = self.read([(b"", {}), (data, attributes)])[1]
        own = [each for each in rejected if each.envelope is None or each.envelope.message_id == "1"]
        outcome = " and ".join([*["points"] * bool(points), *["rejections"] * bool(own)]) or "nothing"
        if stored != self._stored:
            return outcome, f"{stored} points of the good messages are read, not {self._stored}"
        if len(own) < len(rejected):
            return outcome, f"a good message is rejected: {rejected[0].message}"
        internal = [each.message for each in own if each.reason is Reason.INTERNAL_ERROR]
        if internal:
            return outcome, internal[0]
        return outcome, ""


def _read(form: str, numbers: range, answers: BinaryIO) -> None:
    """Reads mutants in this process, which has limits, and writes what became of each."""
    reader = _Reader(forms()[form])
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    for number in numbers:
        data, attributes = made(form, number)
        resource.setrlimit(resource.RLIMIT_AS, (limit + len(data), resource.RLIM_INFINITY))
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        Path("/proc/self/clear_refs").write_text("5")
        before, started = _resident("VmRSS"), time.process_time()
        try:
            outcome, why = reader.judged(data, attributes)
        except BaseException as error:
            outcome, why = "an error", f"{type(error).__name__}: {error}"[:300]
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        seen = Seen(number, outcome, why, time.process_time() - started, _resident("VmHWM") - before)
        answers.write(pickle.dumps(seen))
        answers.flush()


def _resident(name: str) -> int:
    """A figure of this process's memory, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def tried(form: str, numbers: range) -> Iterator[Seen]:
    """What becomes of mutants, also of one that ends its process."""
    while numbers:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            try:
                with open(writing, "wb") as answers:
                    _read(form, numbers[:_BATCH], answers)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        os.close(writing)
        done = 0
        with open(reading, "rb") as answers:
            while True:
                try:
                    seen: Seen = pickle.load(answers)
                except EOFError:
                    break
                done += 1
                yield seen
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code:
            why = f"no end in {SECONDS} s" if code == -signal.SIGPROF else f"the process ends with {code}"
            yield Seen(numbers[done], "an end", why, 0, 0)
            done += 1
        numbers = numbers[max(done, 1) :]


def _all_of(work: tuple[str, range]) -> tuple[str, list[Finding]]:
    """A line of figures, and what is wrong."""
    form, numbers = work
    outcomes: collections.Counter[str] = collections.Counter()
    findings, seconds, longest, peak = [], 0.0, 0.0, 0
    for seen in tried(form, numbers):
        outcomes[seen.outcome] += 1
        seconds, longest, peak = seconds + seen.seconds, max(longest, seen.seconds), max(peak, seen.peak)
        if seen.why:
            findings.append(Finding(form, seen.number, seen.why))
    counts = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(outcomes.items()))
    line = f"{form}: {counts}; {seconds:.0f} s, longest {longest:.1f} s, peak {peak >> 20:,} MiB"
    return line, findings


def _kept(finding: Finding) -> str:
    """Keeps a mutant; the command that tries it again."""
    _KEPT.mkdir(exist_ok=True)
    data, attributes = made(finding.form, finding.number)
    path = _KEPT / f"{finding.form.replace(' ', '-')}-{finding.number}"
    path.write_bytes(data)
    command = f"python -m tests.system.mutants --form '{finding.form}' --number {finding.number}"
    return f"  {finding.why}\n    {path} {json.dumps(attributes)}: {command}"


def main(argv: Sequence[str]) -> int:
    """The program; its exit code is 1 if there are findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.mutants", description=__doc__)
    parser.add_argument("--form", action="append", choices=list(forms()))
    parser.add_argument("--count", type=int, default=1500, help="mutants of each form")
    parser.add_argument("--number", type=int, help="this one mutant alone")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(argv)
    numbers = range(options.count) if options.number is None else range(options.number, options.number + 1)
    findings = []
    work = [(form, numbers) for form in options.form or forms()]
    with multiprocessing.get_context("fork").Pool(options.workers) as pool:
        for line, found in pool.imap(_all_of, work):
            print(line, flush=True)
            findings += found
            for finding in found[:20]:
                print(_kept(finding), flush=True)
    print(f"{len(work)} forms, {len(numbers):,} mutants each, {len(findings)} findings")
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
