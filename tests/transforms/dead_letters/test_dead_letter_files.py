"""What files of dead letters a run leaves, and that it leaves no temporary folder, however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import os, signal, sys
import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from timebeam.pipelines.jobs.runners import LOCAL_RUNNER
from timebeam.schema.points import Reason, Rejected, Stage
from timebeam.transforms.dead_letters.store import WriteDeadLetters

count, end = int(sys.argv[1]), sys.argv[2]

def refuse(_):
    for number in range(count):
        yield Rejected(b"%d" % number, Reason.BAD_SYNTAX, "no", Stage.PARSE)
    print(*os.listdir(), sep="\\n", flush=True)
    if end == "error":
        raise ValueError("the run fails")
    if end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)

with beam.Pipeline(options=PipelineOptions([f"--runner={LOCAL_RUNNER}"])) as pipeline:
    refused = pipeline | beam.Impulse() | beam.FlatMap(refuse).with_output_types(Rejected)
    refused | "DeadLetters" >> WriteDeadLetters("dead", 1, bounded=True)
"""


def run(folder: Path, letters: int, end: str) -> tuple[int, list[str]]:
    """A process with a pipeline that makes letters in its current folder, and ends somehow.

    Returns:
      Its exit code, and what was in the folder when all letters had been handed over.
    """
    environment = {"PYTHONPATH": str(Path(__file__).parents[3])}
    ran = subprocess.run(
        [sys.executable, "-c", RUN, str(letters), end],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        check=False,
    )
    return ran.returncode, ran.stdout.decode().split()


def test_a_run_leaves_its_letters_and_nothing_else(tmp_path: Path) -> None:
    code, during = run(tmp_path, 3, "well")
    assert (code, len(during)) == (0, 1)
    assert during[0].startswith("beam-temp-dead-")
    (path,) = tmp_path.iterdir()
    assert path.name == "dead-00000-of-00001.jsonl"
    letters = [json.loads(line) for line in path.read_text().splitlines()]
    assert [letter["payload"] for letter in letters] == ["0", "1", "2"]


@pytest.mark.parametrize(("end", "expected"), [("well", 0), ("kill", -signal.SIGKILL)])
def test_a_run_that_refuses_nothing_never_makes_a_folder(tmp_path: Path, end: str, expected: int) -> None:
    assert run(tmp_path, 0, end) == (expected, [])
    assert not list(tmp_path.iterdir())


def test_a_run_that_fails_removes_its_folder(tmp_path: Path) -> None:
    code, during = run(tmp_path, 3, "error")
    assert (code, len(during)) == (1, 1)
    assert not list(tmp_path.iterdir())
