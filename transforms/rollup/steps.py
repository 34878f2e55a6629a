"""The steps of a rollup, of a job that is known, or of one that only the workers know."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import PCollection

from transforms.bigtable.wire import EncodedRow
from transforms.rejected import REJECTED, refusing
from transforms.rollup.accumulate import (
    PIECES,
    SHARED,
    AccumulateFn,
    ChunksFn,
    Piece,
    accumulating,
    chunking,
    typed,
)
from transforms.rollup.job import RollupJob, RollupRowKey
from transforms.rollup.rows import EncodeRowFn, StandingFn

Make = Callable[[RollupJob], beam.DoFn]
"""Makes the DoFn of a job."""


class Added(NamedTuple):
    """What comes out of the steps.

    Attributes:
      rows: mutations, by the name of the step that is to write them: in one, some would wait for the others.
      refused: what was refused on the way.
    """

    rows: Mapping[str, PCollection[EncodedRow]]
    refused: Sequence[PCollection[Any]]


def add_steps(once: PCollection[Any], fn_of: Callable[[Make], beam.DoFn], *side_inputs: Any) -> Added:
    """Adds all steps but the writing.

    Args:
      once: one element, whatever it is.
      fn_of: the DoFn of a step, which is given the side inputs.
    """
    piece = tuple[RollupRowKey, Piece]
    chunks = once | "Chunks" >> chunking(fn_of(ChunksFn), *side_inputs)
    accumulated = (
        chunks.main
        | "SpreadChunks" >> beam.Reshuffle()
        | "Accumulate" >> accumulating(fn_of(AccumulateFn), *side_inputs)
    )
    standing = (
        typed(chunks, SHARED)
        | "SpreadShared" >> beam.Reshuffle()
        | "Standing" >> beam.ParDo(fn_of(StandingFn), *side_inputs).with_output_types(piece)
    )
    encoded = (
        (typed(accumulated, PIECES), standing)
        | "Both" >> beam.Flatten()
        | "GroupPerRow" >> beam.GroupByKey()
        | "Encode" >> refusing(fn_of(EncodeRowFn), EncodedRow, *side_inputs)
    )
    rows = {"WriteAtOnce": accumulated.main, "Write": encoded.main}
    return Added(rows, [accumulated[REJECTED], encoded[REJECTED]])
