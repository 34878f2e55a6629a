"""Running a pipeline over input that ends, and telling what it did."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import apache_beam as beam

from pipelines.run import is_dataflow, run_with_progress, submit
from pipelines.summary import Summary


def run_bounded(
    pipeline: beam.Pipeline, options: argparse.Namespace, flags: Sequence[str], run_ms: int, dead_letters: str
) -> int:
    """Runs to the end and prints the summary, or hands the pipeline to Dataflow; the exit code.

    Args:
      options: with `dry_run` and `summary`.
      flags: Beam's options.
      run_ms: when the work began.
      dead_letters: see `letters_of`.
    """
    if is_dataflow(flags):
        return submit(pipeline, dead_letters)
    result = run_with_progress(pipeline)
    summary = Summary.of(result, time.time() - run_ms / 1000, options.dry_run, dead_letters)
    print(summary.to_json() if options.summary == "json" else summary.to_text())
    return 0
