"""Programs of this checkout and of an older one in turns, each in a process that has done its imports."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from benchmarks.bench import BenchmarkError, with_underscores

_COMMANDS = """
import contextlib, importlib, io, json, sys, time
main = importlib.import_module(sys.argv[1] + "pipelines.cli").main
for line in sys.stdin:
    output = io.StringIO()
    started, worked = time.perf_counter(), time.process_time()
    with contextlib.redirect_stdout(output):
        code = main(json.loads(line))
    figures = time.perf_counter() - started, time.process_time() - worked, code, output.getvalue()
    print(json.dumps(figures), flush=True)
"""

_STREAMS = """
import gc, importlib, json, sys, time
time.perf_counter = time.process_time  # what `in_memory` of an older checkout times too
streaming = importlib.import_module("benchmarks.streaming")
packings = streaming.Packing
gc.freeze()  # as the command does after its imports, and it keeps freed memory
getattr(importlib.import_module(sys.argv[1] + "pipelines.cli"), "_keep_heap", lambda: None)()
for line in sys.stdin:
    points, each, packing, *per_ms = json.loads(line)
    timed = streaming.in_memory(streaming.lines_of(points), each, packings(packing), *per_ms)
    print(json.dumps(timed[0] if isinstance(timed, tuple) else timed), flush=True)
"""

_READS = """
import gc, importlib, json, sys, time
reads = importlib.import_module("benchmarks.reads")
gc.freeze()  # as for streams
cli = importlib.import_module(sys.argv[1] + "pipelines.cli")
getattr(cli, "_keep_heap", lambda: None)()
gc.set_threshold(getattr(cli, "_GC_OBJECTS", gc.get_threshold()[0]))
for line in sys.stdin:
    started, worked = time.perf_counter(), time.process_time()
    points = reads.query(*json.loads(line))
    print(json.dumps([time.perf_counter() - started, time.process_time() - worked, points]), flush=True)
"""


class CommandRun(NamedTuple):
    """Wall time and processor time in s of a command, and what it printed."""

    seconds: float
    cpu: float
    output: str


class _Process:
    """A process that reads a line of JSON for each task and answers with one; it ends with the stack.

    Args:
      checkout: its folder; the packages of an older one are at its top.
    """

    def __init__(self, program: str, checkout: Path, stack: contextlib.ExitStack) -> None:
        packages = "timebeam." if (checkout / "timebeam").is_dir() else ""
        command = [sys.executable, "-c", program, packages]
        self._process = stack.enter_context(
            subprocess.Popen(command, cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(self._process.kill)

    def answer(self, task: Sequence[object]) -> Any:
        """What it answers; raises BenchmarkError if it has ended."""
        sent, received = _stream(self._process.stdin), _stream(self._process.stdout)
        sent.write(json.dumps(task) + "\n")
        sent.flush()
        line = received.readline()
        if not line:
            raise BenchmarkError(f"{task}: the process has ended")
        return json.loads(line)


class Commands(_Process):
    """A process in which commands of a checkout run, one after the other."""

    def __init__(self, checkout: Path, stack: contextlib.ExitStack) -> None:
        super().__init__(_COMMANDS, checkout, stack)

    def run(self, arguments: Sequence[str]) -> CommandRun:
        """Runs a command; raises BenchmarkError if its exit code is not 0."""
        seconds, cpu, code, output = self.answer(with_underscores(arguments))
        if code:
            raise BenchmarkError(f"{' '.join(arguments)}: exit code {code}")
        return CommandRun(seconds, cpu, output)


class Streams(_Process):
    """A process in which messages of a checkout's `benchmarks.streaming` are stored from memory."""

    def __init__(self, checkout: Path, stack: contextlib.ExitStack) -> None:
        super().__init__(_STREAMS, checkout, stack)

    def run(self, points: int, each: int, packing: str, *per_ms: int) -> float:
        """Processor seconds for so many points in messages of `each`, `per_ms` of them in a ms."""
        seconds: float = self.answer([points, each, packing, *per_ms])
        return seconds


class Queries(_Process):
    """A process that finds points as a checkout's `benchmarks.reads` does."""

    def __init__(self, checkout: Path, stack: contextlib.ExitStack) -> None:
        super().__init__(_READS, checkout, stack)

    def run(self, prefix: str, seconds: int, points: int) -> tuple[float, float]:
        """(wall time, processor time), in s; raises BenchmarkError for another number of points."""
        wall_s, cpu_s, found = self.answer([prefix, seconds])
        if found != points:
            raise BenchmarkError(f"a query found {found:,} of {points:,} points")
        return wall_s, cpu_s


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream
