"""How far a run is: in lines, and on a terminal in one line that the next text replaces."""

from __future__ import annotations

import io
import os

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from tests.support.commands import timebeam
from timebeam.pipelines.beam_patches.local_runner import LOCAL_RUNNER
from timebeam.pipelines.output.printable import PrintableStream
from timebeam.pipelines.output.progress_and_summary import Progress, progress_text
from timebeam.transforms.flow import metrics


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.mark.parametrize(
    ("counters", "seconds", "text"),
    [
        ({}, 3.2, "    3 s: working"),
        (
            {"points_read": 5000, "work_planned": 100, "work_done": 25, "rows_written": 12},
            10.0,
            "   10 s, 25%, about 30 s left: 5,000 points read (500/s), 12 rows written, 7 rejected",
        ),
        (
            {"points_read": 5000},
            10.0,
            "   10 s: 5,000 points read (500/s), 0 rows written, 7 rejected",
        ),
        (
            {"points_read": 1, "work_planned": 100, "work_done": 120},
            10.0,
            "   10 s, 100%, about 0 s left: 1 points read (0/s), 0 rows written, 7 rejected",
        ),
        (
            {"messages_read": 300, "work_planned": 4, "work_done": 1},
            10.0,
            "   10 s, 25%, about 30 s left: 300 rows read (30/s), 0 rows written, 7 rejected",
        ),
        ({"messages_read": 300}, 10.0, "   10 s: 300 rows read (30/s), 0 rows written, 7 rejected"),
        ({"rows_read": 300}, 10.0, "   10 s: 300 rows read (30/s), 0 rows written, 7 rejected"),
        ({"series": 300}, 10.0, "   10 s: 300 series read (30/s), 0 rows written, 7 rejected"),
        (
            {"points_read": 1, "work_planned": 50, "work_done": 1},
            100.0,
            "  100 s, 2%, about 82 min left: 1 points read (0/s), 0 rows written, 7 rejected",
        ),
        (
            {"points_read": 1, "work_planned": 100, "work_done": 1},
            360.0,
            "  360 s, 1%, about 9 h 54 min left: 1 points read (0/s), 0 rows written, 7 rejected",
        ),
    ],
)
def test_a_line_of_progress(counters: dict[str, int], seconds: float, text: str) -> None:
    assert progress_text(counters, 7, seconds) == text


def test_the_next_text_replaces_a_status_line() -> None:
    screen = Terminal()
    stream = PrintableStream(screen)
    stream.show_status("50 %")
    stream.show_status("60 %\x1b[2J")
    print("done", file=stream)
    stream.show_status("")
    assert screen.getvalue() == "\r\x1b[K50 %\r\x1b[K60 %\\u001b[2J\r\x1b[Kdone\n"


def test_a_status_line_is_cut_to_the_width() -> None:
    screen = Terminal()
    PrintableStream(screen).show_status("x" * 100)
    assert screen.getvalue() == "\r\x1b[K" + "x" * 39


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({}, "\x1b[31mtimebeam query:\x1b[0m no\n\x1b[33mwarning:\x1b[0m timebeam query: x\n"),
        ({"NO_COLOR": "1"}, "timebeam query: no\nwarning: timebeam query: x\n"),
        ({"TERM": "dumb"}, "timebeam query: no\nwarning: timebeam query: x\n"),
    ],
)
def test_labels_are_coloured_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], text: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setitem(os.environ, name, value)
    screen = Terminal()
    print("timebeam query: no\nwarning: timebeam query: x", file=PrintableStream(screen))
    assert screen.getvalue() == text


def test_nothing_is_coloured_in_a_file() -> None:
    file = io.StringIO()
    print("timebeam query: no", file=PrintableStream(file))
    assert file.getvalue() == "timebeam query: no\n"


def test_quiet_and_verbose(tmp_path: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", "localhost:1")
    monkeypatch.setenv("TIMEBEAM_LAYOUT", "opentsdb")
    output = f"{tmp_path}/points"
    line = ("generate", "--points", "10", "--output", output)
    assert timebeam(*line).err.startswith("10 lines in ")
    assert timebeam(*line, "--quiet").err == ""
    assert timebeam("--quiet", *line).err == ""
    quiet, verbose = timebeam("check", "--quiet"), timebeam("check", "--verbose")
    assert len(quiet.err.splitlines()) == 1
    assert "layout opentsdb: TIMEBEAM_LAYOUT\n" in verbose.err
    assert "Traceback" in verbose.err
    assert verbose.err.endswith(quiet.err)


def test_counts_are_those_of_the_job_where_this_process_has_none() -> None:
    pipeline = beam.Pipeline(options=PipelineOptions([f"--runner={LOCAL_RUNNER}"]))
    numbers = pipeline | beam.Create([1, 2])
    numbers | "Count" >> beam.Map(lambda number: metrics.count("points_read", number))
    numbers | "Plan" >> beam.Map(metrics.plan_work)
    progress = Progress()
    progress.result = pipeline.run()
    metrics.totals.clear()
    assert progress.counters() == ({"points_read": 3, "work_planned": 3}, 0)
    metrics.totals["points_read"] = 5
    assert progress.counters() == ({"points_read": 5}, 0)
    metrics.totals.clear()
