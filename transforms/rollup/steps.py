"""The steps of a rollup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import PCollection

from timebeam.transforms.bigtable.rows import EncodedRow
from timebeam.transforms.dead_letters.rejected import REJECTED, refusing
from timebeam.transforms.rollup.accumulate import (
    PIECES,
    SHARED,
    AccumulateFn,
    ChunksFn,
    PackedGroup,
    accumulating,
    chunking,
    typed,
)
from timebeam.transforms.rollup.grouped_rows import EncodeRowFn, ExistingQualifiersFn
from timebeam.transforms.rollup.job import RollupJob, RollupRowKey


class StepOutputs(NamedTuple):
    """The output of the steps.

    Attributes:
      rows: mutations, by the name of the step that writes them: in one step, some would wait for the others.
      refused: refusals of all steps.
    """

    rows: Mapping[str, PCollection[EncodedRow]]
    refused: Sequence[PCollection[Any]]


def add_steps(once: PCollection[Any], job: RollupJob) -> StepOutputs:
    """Adds all steps but the writing.

    Args:
      once: any single element.
      job: the rollup.
    """
    piece = tuple[RollupRowKey, PackedGroup]
    chunks = once | "Chunks" >> chunking(ChunksFn(job))
    accumulated = (
        chunks.main | "SpreadChunks" >> beam.Reshuffle() | "Accumulate" >> accumulating(AccumulateFn(job))
    )
    existing = (
        typed(chunks, SHARED)
        | "SpreadShared" >> beam.Reshuffle()
        | "Standing" >> beam.ParDo(ExistingQualifiersFn(job)).with_output_types(piece)
    )
    encoded = (
        (typed(accumulated, PIECES), existing)
        | "Both" >> beam.Flatten()
        | "GroupPerRow" >> beam.GroupByKey()
        | "Encode" >> refusing(EncodeRowFn(job), EncodedRow)
    )
    rows = {"WriteAtOnce": accumulated.main, "Write": encoded.main}
    return StepOutputs(rows, [accumulated[REJECTED], encoded[REJECTED]])
