"""Transforms run at once: elements in, the elements of each output out, for plain comparisons."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from timebeam.pipelines.beam_patches.local_runner import LOCAL_RUNNER

_collected: dict[str, list[Any]] = {}  # the runner's worker is this process
_runs = itertools.count()


def eagerly(build: Callable[[beam.Pipeline], dict[str, beam.PCollection[Any]]]) -> dict[str, list[Any]]:
    """Runs the pipeline that `build` adds to; the elements of the collections that it returns."""
    run = str(next(_runs))
    pipeline = beam.Pipeline(options=PipelineOptions([f"--runner={LOCAL_RUNNER}"]))
    outputs = build(pipeline)
    for name, collection in outputs.items():
        _collected[run + name] = []
        collection | f"Collect[{name}]" >> beam.Map(_collect, run + name)
    pipeline.run().wait_until_finish()
    return {name: _collected.pop(run + name) for name in outputs}


def _collect(element: Any, key: str) -> None:
    _collected[key].append(element)
