"""`timebeam replay`: dead letters through the pipeline again, after a fix."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from timebeam.pipelines.commands.ingest import STORING, points_graph
from timebeam.pipelines.ingest.jobs import Graph, IngestMessages, ReplayFiles
from timebeam.pipelines.ingest.records import records_graph
from timebeam.pipelines.jobs.job import Run, Source
from timebeam.pipelines.jobs.run import run_job
from timebeam.pipelines.jobs.runners import beam_options
from timebeam.pipelines.options.command_line import CommandParser, parser_of
from timebeam.pipelines.options.parameters import DECLARED
from timebeam.pipelines.options.stored import use_stored
from timebeam.transforms.input.files import match

PARAMETERS = STORING

EXAMPLES = """\
  timebeam replay 'dead-letters-*.jsonl' --layout opentsdb --format opentsdb-json --auto_create_metrics
  timebeam replay projects/my-project/subscriptions/dead --layout opentsdb --format influx \\
      --dead_letters projects/my-project/topics/dead-again --stop_when_idle 10
  timebeam replay 'dead-letters-*.jsonl' --layout table --tables market.toml --format records

takes the options of `timebeam ingest`; give the same --layout options as there"""


def job_of(options: argparse.Namespace) -> ReplayFiles | IngestMessages:
    """The job that the options describe.

    Raises:
      UsageError: options that cannot go together.
      OSError: there is no such file.
    """
    if options.source.startswith("projects/"):
        graph = _graph(options, endless=True)
        source = Source(options.source)
        return IngestMessages(graph, source, options.flush_seconds, options.stop_when_idle, letters=True)
    graph = _graph(options, endless=False)
    return ReplayFiles(graph, [file.path for file in match([options.source])])


def _graph(options: argparse.Namespace, *, endless: bool) -> Graph:
    """How the payloads of the letters are stored.

    Raises:
      UsageError: options that cannot go together.
    """
    if options.layout == DECLARED:
        return records_graph(options)[0]
    return points_graph(options, endless=endless)[0]


def command_parser() -> CommandParser:
    """The parser of the command."""
    parser = parser_of("replay", "Ingests the payloads of dead letters.", EXAMPLES, PARAMETERS)
    parser.add_argument("source", metavar="SOURCE", help="files, a pattern, or projects/P/subscriptions/S")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Stores the payloads of dead letters; those of a subscription until it is stopped."""
    parser = command_parser()
    options, rest = parser.parse_known_args(argv)
    flags = beam_options(parser, rest, options.project)
    use_stored(options)
    run_ms = int(time.time() * 1000)
    return run_job(job_of(options), Run.of(options, flags, run_ms))
