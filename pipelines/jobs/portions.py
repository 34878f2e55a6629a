"""Files on a local runner: one bounded graph, run for one portion of the input after the other.

The rows of a portion are packed and written before the next one is read, so the memory of a run does not
depend on the size of its input, and the first rows are stored early. Portions end where the input says, so a
second run writes the same cells. A row with points in several portions gets cells from each
(`timebeam.transforms.ingest.pack.PackPortionFn`).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import apache_beam as beam

from timebeam.pipelines.jobs.job import Flow, PortionedJob, Run, write_dead_letters
from timebeam.pipelines.local.micro_batches import Repeated, TakeBatch, TakeBlocks, repeated_graphs
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.formats import Message
from timebeam.transforms.flow import coders, metrics
from timebeam.transforms.input.files import counted

PORTION_POINTS = 2_000_000
PORTION_BYTES = 256 << 20
"""A portion ends with the block in which it reaches either limit; bytes are of decompressed text."""


def run_portions(job: PortionedJob, run: Run) -> None:
    """Stores the input; what is counted is in `metrics.totals`."""
    coders.register()
    memory = job.hold()

    def build(snapshot: bool, root: beam.Pipeline, read: TakeBatch) -> None:
        refused = job.build_portion(root, read, Flow(one_bundle=True, snapshot=snapshot))
        write_dead_letters(refused, run.dead_letters, run.run_ms, in_process=True)

    graphs = repeated_graphs(build, run.flags, TakeBlocks)
    graph: Repeated | None = None
    with contextlib.closing(job.blocks()) as blocks:
        for portion in portions(blocks):
            graph = next(graphs, graph)
            assert graph is not None
            graph.run(counted(portion))
    del memory


def portions(blocks: Iterator[Message | Rejected]) -> Iterator[Iterator[Message | Rejected]]:
    """Cuts blocks into portions, each of which must be stored before the next one is asked for."""
    for first in blocks:
        yield _portion(itertools.chain((first,), blocks))


def _portion(blocks: Iterator[Message | Rejected]) -> Iterator[Message | Rejected]:
    """The first blocks; a block is parsed when the next one is asked for, so its points are counted."""
    points, size = metrics.totals["points_read"], 0
    for block in blocks:
        yield block
        size += len(block.payload if isinstance(block, Rejected) else block.text)
        if size >= PORTION_BYTES or metrics.totals["points_read"] - points >= PORTION_POINTS:
            return
