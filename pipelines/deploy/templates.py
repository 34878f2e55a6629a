"""Dataflow templates out of the one declaration of parameters: which jobs, their files, and their program.

`launch` is what a flex template's launcher starts: the command of the job that the image was built for.
Dataflow runs `python templates/main.py --NAME=VALUE …`, the template's parameters and Beam's options as
strings, and waits for the job file that the pipeline leaves at `--template_location`.

| variable of the image | content |
|---|---|
| TIMEBEAM_JOB | a job of `JOBS` |
| TIMEBEAM_IMAGE | the image's own name, which is that of its workers too |

`templates/JOB/metadata.json` has the parameters: TemplateMetadata of Dataflow's API (v1b3), in JSON.
`templates/build` puts it into a ContainerSpec, which a launch of a flex template reads.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from timebeam.pipelines import cli
from timebeam.pipelines.commands import find_command
from timebeam.pipelines.options.command_line import with_profiles
from timebeam.pipelines.options.parameters import (
    Parameter,
    TemplateType,
    boolean,
    flag,
    not_negative,
    positive,
    whole,
)
from timebeam.pipelines.options.profiles import setting_text


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
            _as_settings(parameter)
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


_SETTINGS = {"set": "settings", "to_set": "to_settings"}
"""Options of NAME=VALUE, and the parameter of a template that has all of them, separated by `;`."""


def _as_settings(parameter: Parameter) -> Parameter:
    """The parameter of a template for an option of `_SETTINGS`; of another option that itself."""
    if parameter.name not in _SETTINGS:
        return parameter
    return dataclasses.replace(
        parameter,
        name=_SETTINGS[parameter.name],
        help=f"{parameter.help}; several are separated by ;",
        many=False,
        default=None,
        regex="[a-z_]+=[^;]*(;[a-z_]+=[^;]*)*",
        example="salt_width=1;salt_buckets=20",
    )


def as_options(word: str) -> list[str]:
    """The options of the command that a parameter of its template is.

    >>> as_options("--settings=salt_width=1;retention=7,90")
    ['--set=salt_width=1', '--set=retention=7,90']
    """
    name, _, text = word.partition("=")
    for option, settings in _SETTINGS.items():
        if name == f"--{settings}":
            return [f"{flag(option)}={assigned}" for assigned in text.split(";") if assigned]
    return [word]


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
        "OpenTSDB, Heroic or KairosDB or in declared tables. Rejected input goes to the dead "
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
        "archive",
        "archive",
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
        "`timebeam copy --verify-only` then verifies the copy.",
        frozenset({"from", "to", "start", "instance", "dead_letters"}),
    ),
)

JOBS = {job.name: job for job in _JOBS}


_WORKER_IMAGE = "--sdk_container_image"


def launch(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code. Workers run in this image unless another one is given."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    job = JOBS.get(os.environ.get("TIMEBEAM_JOB", ""))
    if job is None:
        print(f"TIMEBEAM_JOB must be one of {', '.join(JOBS)}", file=sys.stderr)
        return 2
    image = os.environ.get("TIMEBEAM_IMAGE")
    if image and not any(argument.split("=")[0] == _WORKER_IMAGE for argument in arguments):
        arguments.append(f"{_WORKER_IMAGE}={image}")
    return cli.main([job.command, *(option for word in arguments for option in as_options(word))])


_FOLDER = Path("templates")
_KINDS: dict[Callable[[str], Any], tuple[TemplateType, str]] = {
    boolean: (TemplateType.BOOLEAN, "true|false"),
    whole: (TemplateType.NUMBER, "[0-9]+"),
    positive: (TemplateType.NUMBER, "[1-9][0-9]*"),
    not_negative: (TemplateType.NUMBER, r"[0-9]+(\.[0-9]+)?"),
}
_ACRONYMS = {"uid": "UID", "uids": "UIDs", "avro": "Avro", "kairosdb": "KairosDB", "opentsdb": "OpenTSDB"}


def template_parameters(job: str) -> list[dict[str, Any]]:
    """The parameters of a job's template, in their order.

    Returns:
      dicts of: name, label, help, group, type (a ParameterType of Dataflow's API), required, default (a text;
      None if there is none), regex (anchored; None if any text will do), enum (the values; empty if they are
      not a closed set), example (a text that is accepted), shown_for (see `Parameter`).

    Raises:
      KeyError: there is no such job.
    """
    return [described(parameter) for parameter in JOBS[job].parameters]


def text_of(value: Any) -> str | None:
    """A default as a template passes it."""
    if value is None or value == []:
        return None
    return f"{value:g}" if isinstance(value, float) else setting_text(value)


def described(parameter: Parameter) -> dict[str, Any]:
    """A parameter as `template_parameters` has it."""
    kind, pattern = _type_of(parameter)
    default = text_of(parameter.default)
    return {
        "name": parameter.name,
        "label": parameter.label or _label(parameter.name),
        "help": re.sub(r"--([a-z][-a-z]*)", lambda match: match[1].replace("-", "_"), parameter.help),
        "group": parameter.group,
        "type": kind.value,
        "required": parameter.required,
        "default": default,
        "regex": f"^({pattern})$" if pattern else None,
        "enum": list(parameter.choices),
        "shown_for": parameter.shown_for,
        "example": parameter.example or default or (parameter.choices or ("",))[0],
    }


def _type_of(parameter: Parameter) -> tuple[TemplateType, str]:
    """(type, what the whole text must match)."""
    if parameter.choices:
        return TemplateType.ENUM, "|".join(map(re.escape, parameter.choices)).replace(r"\-", "-")
    kind, pattern = _KINDS.get(parameter.kind, (TemplateType.TEXT, ""))
    return parameter.template or kind, parameter.regex or pattern


def _label(name: str) -> str:
    words = [_ACRONYMS.get(word, word) for word in name.split("_")]
    return " ".join([words[0][0].upper() + words[0][1:], *words[1:]])


def metadata(job: Deployable) -> dict[str, Any]:
    """TemplateMetadata of a job, as JSON has it.

    A stream may run in both modes: its cells are functions of the messages, so that a message that is
    worked on twice is stored once. At least once is the default, which is what `points` packing, without
    any shuffle, is best run with.
    """
    document: dict[str, Any] = {
        "name": job.title,
        "description": job.description,
        "streaming": job.streaming,
    }
    if job.streaming:
        document |= {
            "supportsAtLeastOnce": True,
            "supportsExactlyOnce": True,
            "defaultStreamingMode": "AT_LEAST_ONCE",
        }
    parameters = template_parameters(job.name)
    names = {parameter["name"] for parameter in parameters}
    return document | {"parameters": [_metadata(parameter, names) for parameter in parameters]}


def _metadata(parameter: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """ParameterMetadata; `names` are those of all parameters of the template."""
    first, _, rest = parameter["help"].partition(" ")
    helped = parameter["help"] if first.endswith(":") else f"{first[0].upper()}{first[1:]} {rest}"
    document: dict[str, Any] = {
        "name": parameter["name"],
        "label": parameter["label"],
        "helpText": f"{helped}. Example: {parameter['example']}",
        "groupName": parameter["group"],
        "paramType": parameter["type"],
        "isOptional": not parameter["required"],
    }
    if parameter["regex"]:
        document["regexes"] = [parameter["regex"]]
    if parameter["default"]:
        document["defaultValue"] = parameter["default"]
    parent, values = parameter["shown_for"] or ("", ())
    if parent in names:
        document |= {"parentName": parent, "parentTriggerValues": list(values)}
    if parameter["enum"]:
        document["enumOptions"] = [{"value": value, "label": value} for value in parameter["enum"]]
    return document


def files() -> dict[Path, str]:
    """The content of all generated files by their paths in the repository."""
    return {
        _FOLDER / job.name / "metadata.json": json.dumps(metadata(job), indent=2, ensure_ascii=False) + "\n"
        for job in JOBS.values()
    }


def write_or_check(
    contents: Mapping[Path, str], module: str, description: str, argv: Sequence[str] | None
) -> int:
    """Writes generated files, or says which ones are not as they should be; returns the exit code.

    Args:
      contents: of the files, by their paths in the repository.
      module, description: of the program, for its help.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("action", choices=["write", "check"])
    action = parser.parse_args(argv).action
    stale = [path for path in contents if not path.exists() or path.read_text("utf-8") != contents[path]]
    for path in stale:
        if action == "write":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(contents[path], "utf-8")
        print(path)
    return 1 if stale and action == "check" else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Writes or checks the templates' files."""
    return write_or_check(
        files(), "timebeam.pipelines.deploy.templates", "Generates the templates' files.", argv
    )


if __name__ == "__main__":
    sys.exit(main())
