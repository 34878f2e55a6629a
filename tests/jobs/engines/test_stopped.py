"""Runs with processes that are stopped or killed: no process, no file and no stack is left.

The input is a pipe that nobody writes to, so the workers wait within a bundle.
"""

from __future__ import annotations

import os
import signal
import time
from io import BytesIO
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from apache_beam.portability.api import beam_fn_api_pb2
from apache_beam.runners.portability.fn_api_runner.worker_handlers import ControlConnection

from tests.support.budget import long_after
from tests.support.points import BASE_S
from tests.support.processes.children import start_command
from tests.support.stored import Store
from timebeam.pipelines.beam_patches.fork_server import DEATH, ForkServer, stoppable
from timebeam.pipelines.beam_patches.local_runner import _ForkedWorker
from timebeam.pipelines.jobs.run_input import Signals

TWO = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]


class Held:
    """A run of two worker processes that wait for their input.

    Attributes:
      temporary: its folder for temporary files.
      group: the process group of its workers.
    """

    def __init__(self, bigtable: tuple[str, str], prefix: str, folder: Path) -> None:
        self._store = Store.create(bigtable, prefix)
        self._folder = folder
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        os.mkfifo(folder / "pipe.gz")
        self.process = self._start("pipe.gz", "held")
        while not list(self.temporary.glob("*/tmp*")):  # a worker has begun
            assert self.process.is_alive(), self.errors("held")
            time.sleep(0.1)
        group = _group(self.process)
        assert group is not None
        self.group = group

    def errors(self, name: str) -> str:
        """Standard error of a run."""
        return (self._folder / name / "err").read_text()

    def start_again(self) -> BaseProcess:
        """A run with input."""
        (self._folder / "points.txt").write_text(f"put sys.load {BASE_S} 1 host=a\n")
        return self._start("points.txt", "again")

    def run_again(self) -> int | None:
        """The exit code of a run with input."""
        process = self.start_again()
        process.join()
        return process.exitcode

    def wait_for_workers(self) -> None:
        """Waits until no process of the group is left."""
        try:
            while True:
                os.killpg(self.group, 0)
                time.sleep(0.1)
        except ProcessLookupError:
            return

    def _start(self, name: str, output: str) -> BaseProcess:
        arguments = [
            *("ingest", *self._store.flags, "--format=opentsdb-text", "--auto-create-metrics", "--quiet"),
            *(f"--input={self._folder / name}", f"--dead-letters={self._folder / 'dead'}", *TWO),
        ]
        return start_command(arguments, self._folder / output, {"TMPDIR": str(self.temporary)})


def _group(parent: BaseProcess) -> int | None:
    """The process group that a child of a process leads, if there is one."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        if int(fields[1]) == parent.pid and fields[2] == stat.parent.name:
            return int(fields[2])
    return None


@pytest.mark.parametrize("number", long_after(1, [signal.SIGINT, signal.SIGTERM]))
def test_a_stopped_run_leaves_nothing_and_says_one_line(
    number: signal.Signals, bigtable: tuple[str, str], prefix: str, tmp_path: Path
):
    held = Held(bigtable, prefix, tmp_path)
    assert held.process.pid is not None
    os.kill(held.process.pid, number)
    held.process.join()
    assert held.process.exitcode == 130
    assert held.errors("held") == "timebeam ingest: stopped; run it again to complete the work\n"
    assert list(held.temporary.iterdir()) == []
    held.wait_for_workers()


def test_a_signal_that_is_ignored_stays_ignored():
    """As Ctrl-C by the background jobs of a script."""
    server = cast(ForkServer, SimpleNamespace(lost=False))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stoppable(server):
            ignored, heard = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        with Signals(lambda: None, "now"):
            stream_ignored = signal.getsignal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ignored is stream_ignored is signal.SIG_IGN
    assert callable(heard)


def test_a_run_whose_fork_server_is_killed_before_it_has_workers_fails_with_one_line(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
):
    held = Held(bigtable, prefix, tmp_path)
    held.process.kill()
    held.wait_for_workers()
    starting = held.start_again()
    while (server := _group(starting)) is None:
        time.sleep(0.01)
    os.kill(server, signal.SIGKILL)
    starting.join(60)
    assert (starting.exitcode, held.errors("again")) == (1, f"timebeam ingest: {DEATH}\n")
    assert list(held.temporary.iterdir()) == []


def test_work_for_a_worker_that_died_while_it_was_idle_fails():
    control = ControlConnection()
    worker = SimpleNamespace(control_conn=control, data_conn=BytesIO())
    _ForkedWorker._on_loss(cast(_ForkedWorker, worker))
    future = control.push(beam_fn_api_pb2.InstructionRequest(instruction_id="later"))
    with pytest.raises(RuntimeError, match="disconnected"):
        future.get(5)


def test_what_a_killed_run_leaves_is_removed_by_the_next_run_and_not_sooner(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
):
    held = Held(bigtable, prefix, tmp_path)
    foreign = held.temporary / "beam-pipeline-temp-of-another-program"
    foreign.mkdir()
    assert held.run_again() == 0, held.errors("again")
    left = set(held.temporary.iterdir()) - {foreign}
    assert len(left) == 1  # that of the run that still lives
    held.process.kill()
    held.process.join()
    held.wait_for_workers()
    assert set(held.temporary.iterdir()) == {foreign, *left}
    (tmp_path / "again").rename(tmp_path / "first")
    assert held.run_again() == 0, held.errors("again")
    assert list(held.temporary.iterdir()) == [foreign]
