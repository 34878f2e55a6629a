"""The program that makes the classic template of the rollup: `python -m pipelines.rollup_classic`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipelines import rollup
from pipelines.jobs import MADE_WITH
from pipelines.parameters import UsageError, parser_of
from pipelines.rollup_deferred import JOB, Launch, RollupValues, build
from pipelines.run import beam_options, submit

_BUILT = tuple(
    one
    for one in rollup.PARAMETERS
    if one.name == "project" or (JOB.without.get(one.name) == MADE_WITH and one.name != "layout")
)

EXAMPLES = """\
  python -m pipelines.rollup_classic --project my-project --region europe-west1 \\
      --template_location gs://my-bucket/templates/rollup_classic \\
      --staging_location gs://my-bucket/staging --temp_location gs://my-bucket/temp \\
      --sdk_container_image europe-west1-docker.pkg.dev/my-project/timebeam/timebeam-rollup:0.1.0

`templates/build rollup_classic` runs this; every option of Beam can be given too"""


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the template; the exit code."""
    parser = parser_of("rollup_classic", "Makes the classic template of rollup.", EXAMPLES, _BUILT)
    parser.prog = "python -m pipelines.rollup_classic"
    options, rest = parser.parse_known_args(argv)
    flags = [*beam_options(parser, rest, options.project), "--runner=DataflowRunner"]
    if not options.project or not any(one.startswith("--template_location") for one in flags):
        raise UsageError("give --project, and --template_location: where the template goes")
    pipeline = beam.Pipeline(options=PipelineOptions(flags))
    values = pipeline.options.view_as(RollupValues)
    given = {one.name: getattr(values, one.name) for one in JOB.parameters}
    build(pipeline, Launch(vars(options) | {"layout": "opentsdb"}, given))
    return submit(pipeline)


def run() -> int:
    """Runs `main`; what a user can mend becomes one line."""
    try:
        return main()
    except UsageError as error:
        print(f"rollup_classic: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(run())
