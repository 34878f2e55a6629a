"""Dataflow templates out of the one declaration of parameters.

The files are those of the messages TemplateMetadata and ContainerSpec of Dataflow's API (v1b3), in JSON:

| file | content |
|---|---|
| templates/JOB/metadata.json | the parameters |
| templates/JOB/image_spec.json | what a launch of a flex template reads: the same, and `${IMAGE}` |
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from timebeam.pipelines.deploy.deployed_jobs import JOBS, Deployable
from timebeam.pipelines.options.parameters import (
    Parameter,
    TemplateType,
    boolean,
    not_negative,
    positive,
    whole,
)
from timebeam.pipelines.options.profiles import setting_text

IMAGE = "${IMAGE}"
"""Stands in an image specification for the image, which is the builder's."""

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
    return [_described(parameter) for parameter in JOBS[job].parameters]


def text_of(value: Any) -> str | None:
    """A default as a template passes it."""
    if value is None or value == []:
        return None
    return f"{value:g}" if isinstance(value, float) else setting_text(value)


def _described(parameter: Parameter) -> dict[str, Any]:
    kind, pattern = _type_of(parameter)
    default = text_of(parameter.default)
    return {
        "name": parameter.name,
        "label": parameter.label or _label(parameter.name),
        "help": re.sub(r"--([a-z_]+)", r"\1", parameter.help),
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


def image_spec(job: Deployable, image: str = IMAGE) -> dict[str, Any]:
    """ContainerSpec of a job, as JSON has it.

    Args:
      image: with its registry and tag.
    """
    return {"image": image, "sdkInfo": {"language": "PYTHON"}, "metadata": metadata(job)}


def files() -> dict[Path, str]:
    """The content of all generated files by their paths in the repository."""
    generated = {}
    for job in JOBS.values():
        contents = {"metadata.json": metadata(job), "image_spec.json": image_spec(job)}
        for name, content in contents.items():
            generated[_FOLDER / job.name / name] = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    return generated


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
