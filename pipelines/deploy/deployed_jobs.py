"""The jobs that are deployed as Dataflow templates: which command each is, and which of its parameters.

`main` is what a flex template's launcher starts: the command of the job that the image was built for.
Dataflow runs `python templates/main.py --NAME=VALUE …`, the template's parameters and Beam's options as
strings, and waits for the job file that the pipeline leaves at `--template_location`.

| variable of the image | content |
|---|---|
| TIMEBEAM_JOB | a job of `JOBS` |
| TIMEBEAM_IMAGE | the image's own name, which is that of its workers too |
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence

from timebeam.pipelines import cli
from timebeam.pipelines.commands import find_command
from timebeam.pipelines.options.command_line import with_profiles
from timebeam.pipelines.options.parameters import Parameter


@dataclasses.dataclass(frozen=True, slots=True)
class Deployable:
    """A command of `timebeam` as a template.

    Attributes:
      name: of its folder in templates/, of its image and of its specification.
      command: what its program runs: `timebeam COMMAND`.
      title: its name in a list of templates.
      description: what it does, in a sentence or two.
      required: names of those that a job on Dataflow cannot do without, required by the command or not.
        The template requires those that no settings file (`config`) can give.
      without: of those that are not this template's: name to the reason. `Parameter.local` has those
        that are no template's.
      streaming: whether it runs until stopped.
    """

    name: str
    command: str
    title: str
    description: str
    required: frozenset[str]
    without: Mapping[str, str] = dataclasses.field(default_factory=dict)
    streaming: bool = False

    @property
    def declared(self) -> Sequence[Parameter]:
        """The parameters of the command."""
        return find_command(self.command).parameters

    @property
    def parameters(self) -> list[Parameter]:
        """Those of the template: the required ones first, then group by group as they are declared."""
        parameters = [
            parameter
            for parameter in with_profiles(self.declared)
            if not parameter.local and parameter.name not in self.without
        ]
        parameters = [
            _required(parameter) if parameter.name in self.required else parameter for parameter in parameters
        ]
        groups = list(dict.fromkeys(parameter.group for parameter in parameters))
        return sorted(
            parameters, key=lambda parameter: (not parameter.required, groups.index(parameter.group))
        )

    @property
    def left_out(self) -> dict[str, str]:
        """Options of the command that are not parameters of the template: name to the reason."""
        local = {parameter.name: parameter.local for parameter in self.declared if parameter.local}
        return local | dict(self.without)


def _required(parameter: Parameter) -> Parameter:
    """A parameter that a job cannot do without, given by itself or by the settings file."""
    if not parameter.setting:
        return dataclasses.replace(parameter, required=True, default=None)
    help_text = f"{parameter.help}; required here or in the file of config"
    return dataclasses.replace(parameter, required=False, default=None, help=help_text)


_OF_FILES = "the job reads files"
_BY_HAND = "a selection is deleted by hand, with a token"
_OF_MESSAGES = "the job reads messages"


_JOBS = (
    Deployable(
        "ingest",
        "ingest",
        "Pub/Sub to Bigtable time series",
        "Streams metric points from a Pub/Sub subscription into Bigtable, in the layout of "
        "OpenTSDB, Heroic or KairosDB or in declared tables. Refused input goes to the dead "
        "letters.",
        frozenset({"input_subscription", "format", "layout", "instance", "dead_letters"}),
        {"input": _OF_MESSAGES},
        streaming=True,
    ),
    Deployable(
        "ingest_files",
        "ingest",
        "Files to Bigtable time series",
        "Stores metric points from files in Bigtable, in the layout of OpenTSDB, Heroic or "
        "KairosDB or in declared tables. It can run while a stream runs; a repeated run changes "
        "nothing.",
        frozenset({"input", "format", "layout", "instance", "dead_letters"}),
        {"input_subscription": _OF_FILES, "flush_seconds": _OF_FILES},
    ),
    Deployable(
        "rollup",
        "rollup",
        "Rollups of time series in Bigtable",
        "Makes the rollups and pre-aggregates of a day, by default of the last complete day. A "
        "repeated run gives the same result.",
        frozenset({"layout", "instance", "dead_letters"}),
    ),
    Deployable(
        "compact",
        "compact",
        "Compaction of OpenTSDB rows in Bigtable",
        "Merges the cells of each row of closed hours into one, by default of the last closed "
        "day. Queries return the same before and after.",
        frozenset({"layout", "instance"}),
    ),
    Deployable(
        "delete",
        "delete",
        "Retention of time series in Bigtable",
        "Deletes points and rollups that are older than a number of days, by metric, as a scheduled job. "
        "Without `unattended` it only counts them.",
        frozenset({"keep_days", "layout", "instance", "log"}),
        dict.fromkeys(("start", "end", "tag", "explicit_tags", "tsuid", "full_scan", "token"), _BY_HAND),
    ),
    Deployable(
        "seal",
        "seal",
        "Archive of time series in Bigtable",
        "Moves closed hours into an archive of compressed columns. With "
        "`delete_source` it deletes from the data table what an earlier run has moved.",
        frozenset({"layout", "instance"}),
    ),
    Deployable(
        "copy",
        "copy",
        "Time series in Bigtable from layout to layout",
        "Copies the points of a time range from the tables of one layout to those of another. "
        "`timebeam copy --verify_only` then verifies the copy.",
        frozenset({"from", "to", "start", "instance", "dead_letters"}),
    ),
)

JOBS = {job.name: job for job in _JOBS}


_WORKER_IMAGE = "--sdk_container_image"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code. Workers run in this image unless another one is given."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    job = JOBS.get(os.environ.get("TIMEBEAM_JOB", ""))
    if job is None:
        print(f"TIMEBEAM_JOB must be one of {', '.join(JOBS)}", file=sys.stderr)
        return 2
    image = os.environ.get("TIMEBEAM_IMAGE")
    if image and not any(argument.split("=")[0] == _WORKER_IMAGE for argument in arguments):
        arguments.append(f"{_WORKER_IMAGE}={image}")
    return cli.main([job.command, *arguments])
