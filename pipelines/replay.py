"""`timebeam replay`: dead letters through the pipeline again, after a fix."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipelines import cli, stream
from pipelines.bounded import run_bounded
from pipelines.graph import Flow, build_from_messages
from pipelines.ingest import STORING, job_of
from pipelines.options import create_command
from pipelines.parameters import parser_of
from pipelines.run import beam_options
from transforms.bigtable.tables import check_tables
from transforms.files import match
from transforms.letters import ReadLetters

PARAMETERS = STORING

EXAMPLES = """\
  timebeam replay 'dead-letters-*.jsonl' --layout opentsdb --format opentsdb-json --auto_create_metrics
  timebeam replay projects/my-project/subscriptions/dead --layout opentsdb --format influx \\
      --dead_letters projects/my-project/topics/dead-again --stop_when_idle 10

the options are those of `timebeam ingest`; give the same --layout options as there"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the letters of files to their end, those of a subscription as long as any come."""
    parser = parser_of("replay", "Ingests the payloads of dead letters.", EXAMPLES, PARAMETERS)
    parser.add_argument("source", metavar="SOURCE", help="files or a pattern, or projects/P/subscriptions/S")
    options, rest = parser.parse_known_args(argv)
    flags = beam_options(parser, rest, options.project)
    run_ms = int(time.time() * 1000)
    if options.source.startswith("projects/"):
        job, _ = job_of(options, endless=True, run_ms=run_ms)
        return stream.run(stream.Work.of(job, letters=True), stream.Source(options.source), options, flags)
    job, _ = job_of(options, endless=False, run_ms=run_ms)
    paths = [file.path for file in match([options.source])]  # now, so that no letters of this run are read
    check_tables(job.target, job.tables(), create_command(options))
    pipeline = beam.Pipeline(options=PipelineOptions([*flags]))
    build_from_messages(pipeline, job, ReadLetters(paths), Flow(endless=False, run_ms=run_ms), letters=True)
    return run_bounded(pipeline, options, flags, run_ms, job.dead_letters)


if __name__ == "__main__":
    sys.exit(cli.main(["replay", *sys.argv[1:]]))
