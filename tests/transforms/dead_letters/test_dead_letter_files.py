"""What files of dead letters a run in one process leaves, however it ends: its letters and nothing else."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from tests.support.processes.children import start
from timebeam.pipelines.beam_patches.local_runner import LOCAL_RUNNER
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.transforms.dead_letters.letter_files import WriteDeadLetters

FILE = "dead-00000-of-00001.jsonl"


def reject(folder: Path, letters: int, end: str) -> None:
    """A pipeline that makes letters in a folder; `during` has what is there when all are handed over."""
    os.chdir(folder)

    def make(_: bytes) -> Iterator[Rejected]:
        for number in range(letters):
            yield Rejected(b"%d" % number, Reason.BAD_SYNTAX, "no", Stage.PARSE)
        (folder.parent / "during").write_text("\n".join(os.listdir()))
        if end == "error":
            raise ValueError("the run fails")
        if end == "kill":
            os.kill(os.getpid(), signal.SIGKILL)

    with beam.Pipeline(options=PipelineOptions([f"--runner={LOCAL_RUNNER}"])) as pipeline:
        rejected = pipeline | beam.Impulse() | beam.FlatMap(make).with_output_types(Rejected)
        rejected | "DeadLetters" >> WriteDeadLetters("dead", 1, in_process=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "letters"
    folder.mkdir()
    return folder


def run(folder: Path, letters: int, end: str) -> tuple[int, list[str]]:
    """The exit code of a process that runs `refuse`, and what was in the folder meanwhile."""
    process = start(reject, folder, letters, end)
    process.join()
    assert process.exitcode is not None
    return process.exitcode, (folder.parent / "during").read_text().split()


def payloads(folder: Path) -> list[str]:
    """Of the letters in the only file of a folder."""
    (path,) = folder.iterdir()
    assert path.name == FILE
    return [json.loads(line)["payload"] for line in path.read_text().splitlines()]


def test_a_run_leaves_its_letters_and_nothing_else(folder: Path) -> None:
    assert run(folder, 3, "well") == (0, [FILE])
    assert payloads(folder) == ["0", "1", "2"]


@pytest.mark.parametrize(("end", "expected"), [("well", 0), ("kill", -signal.SIGKILL)])
def test_a_run_that_rejects_nothing_makes_no_file(folder: Path, end: str, expected: int) -> None:
    assert run(folder, 0, end) == (expected, [])
    assert not list(folder.iterdir())


def test_a_run_that_fails_leaves_its_letters(folder: Path) -> None:
    assert run(folder, 3, "error") == (1, [FILE])
    assert payloads(folder) == ["0", "1", "2"]
