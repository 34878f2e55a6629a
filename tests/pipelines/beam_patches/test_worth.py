"""Each patch of Beam is still worth something with the version that is pinned: counted, not timed.

After an upgrade of Beam: look at each patch, measure it again (`timebeam.pipelines.beam_patches` says what
each saved), and then change the version here. The counts are those of a process without the tests' patches.
"""

from __future__ import annotations

import json
import subprocess
import sys

import apache_beam as beam
from apache_beam.runners.direct.direct_runner import SwitchingDirectRunner
from apache_beam.runners.runner import create_runner

from timebeam.pipelines.beam_patches import local_runner

VERSION = "2.77.0"

_COUNTS = """
import argparse, json
import apache_beam as beam
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms import core
from timebeam.pipelines.beam_patches import cached

calls = []

def counted(function):
    def call(*arguments):
        calls.append(function)
        return function(*arguments)
    return call

def count(work):
    calls.clear()
    work()
    return len(calls)

def look(options):
    for _ in range(3):
        options.view_as(DirectOptions)

def run():
    with beam.Pipeline(runner=FnApiRunner()) as root:
        for number in range(5):
            root | f"Create{number}" >> beam.Create([number]) | f"Keep{number}" >> beam.ParDo(Keep())

class Keep(beam.DoFn):
    def process(self, element):
        return [element]

parse = argparse.ArgumentParser.parse_known_args
argparse.ArgumentParser.parse_known_args = counted(parse)
options = PipelineOptions([]), cached.CachedOptions([])
parsed = [count(lambda: look(each)) for each in options]
argparse.ArgumentParser.parse_known_args = parse

core.get_function_args_defaults = counted(core.get_function_args_defaults)
inspected = [count(run)]
cached.remember_signatures()
inspected.append(count(run))
print(json.dumps([parsed, inspected]))
"""


def _printed(program: str) -> str:
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return run.stdout


def test_the_version_of_beam_for_which_the_patches_were_measured() -> None:
    assert beam.__version__ == VERSION


def test_options_are_parsed_and_steps_inspected_more_often_without_the_patches() -> None:
    parsed, inspected = json.loads(_printed(_COUNTS))
    assert parsed == [3, 1]
    assert 3 * inspected[1] < inspected[0]


def test_the_direct_runner_still_looks_for_another_engine() -> None:
    assert isinstance(create_runner("DirectRunner"), SwitchingDirectRunner)
    assert type(create_runner(local_runner.LOCAL_RUNNER)) is local_runner.LocalRunner


def test_beam_still_imports_what_timebeam_never_uses() -> None:
    show = "; import sys; print('pandas' in sys.modules)"
    ours = "from timebeam.pipelines.beam_patches import import_beam; import_beam()"
    assert _printed("import timebeam.pipelines.jobs.run" + show) == "True\n"
    assert _printed(ours + show) == "False\n"
