"""Starts a job from its template, with its parameters checked before Dataflow is asked.

Needs Python and gcloud only.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from typing import Any

import shell

EXAMPLES = """\
examples:
  templates/run ingest --bucket gs://my-bucket/timebeam --region europe-west1 \\
      --layout opentsdb --format opentsdb-json --instance my-instance \\
      --input-subscription projects/my-project/subscriptions/points \\
      --dead-letters projects/my-project/topics/dead --bigtable-writer direct
  templates/run rollup ... --print_only
  templates/run ingest ... --update -- --max-workers=20 --service-account-email=ACCOUNT

arguments after `--` go to gcloud unchanged; `templates/run JOB --help` lists the parameters of a job"""

_DELIMITERS = "~|;#!"


def matching(parameter: dict[str, Any]) -> Callable[[str], str]:
    """Checks the text of a parameter."""

    def check(text: str) -> str:
        for regex in parameter.get("regexes", []):
            if not re.fullmatch(regex, text):
                raise argparse.ArgumentTypeError(f"{text!r} does not match {regex}")
        return text

    return check


def parser(job: str, metadata: dict[str, Any]) -> argparse.ArgumentParser:
    """The command line of a job: the template's parameters, and how it is started."""
    command_line = argparse.ArgumentParser(
        prog=f"templates/run {job}",
        usage="%(prog)s --bucket BUCKET --region REGION --PARAMETER VALUE ... [options] [-- GCLOUD_FLAG ...]",
        description=metadata["description"],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    start = command_line.add_argument_group("Start")
    start.add_argument(
        "--bucket",
        required=True,
        type=shell.bucket,
        help="the bucket of templates/build: gs://BUCKET, or a folder in one",
    )
    start.add_argument("--region", required=True)
    start.add_argument("--project", help="default: gcloud's own")
    start.add_argument(
        "--job_name",
        default=f"timebeam-{job.replace('_', '-')}",
        help="name of the job, unique among running jobs (default: %(default)s)",
    )
    if metadata["streaming"]:
        start.add_argument(
            "--streaming_mode",
            choices=["at_least_once", "exactly_once"],
            help="default: exactly_once with --packing compacted, else at_least_once",
        )
        start.add_argument("--update", action="store_true", help="replace the running job of this name")
    start.add_argument("--print_only", action="store_true", help="print the command; do not run it")
    groups: dict[str, Any] = {}
    for parameter in metadata["parameters"]:
        name = parameter["groupName"]
        groups[name] = groups.get(name) or command_line.add_argument_group(name)
        flag: dict[str, Any] = {"nargs": "?", "const": "true"} if parameter["paramType"] == "BOOLEAN" else {}
        groups[name].add_argument(
            f"--{parameter['name']}",
            type=matching(parameter),
            required=not parameter["isOptional"],
            metavar=parameter["name"].upper(),
            help=parameter["helpText"].replace("%", "%%"),
            **flag,
        )
    return command_line


def joined(values: dict[str, str]) -> str:
    """Values by name as gcloud reads them (see `gcloud topic escaping`)."""
    pairs = [f"{name}={value}" for name, value in values.items()]
    if not any("," in pair for pair in pairs):
        return ",".join(pairs)
    delimiter = next(character for character in _DELIMITERS if not any(character in pair for pair in pairs))
    return f"^{delimiter}^{delimiter.join(pairs)}"


def streaming_mode(options: dict[str, Any]) -> str:
    """The mode asked for, else that of the packing: only compacted rows grow if a bundle runs twice."""
    default = "exactly_once" if options["packing"] == "compacted" else "at_least_once"
    return str(options["streaming_mode"] or default)


def call(job: str, metadata: dict[str, Any], options: argparse.Namespace, rest: list[str]) -> str:
    """The call of gcloud that starts the job."""
    values_by_name = vars(options)
    values = {parameter["name"]: values_by_name[parameter["name"]] for parameter in metadata["parameters"]}
    values = {name: value for name, value in values.items() if value is not None}
    template = options.bucket.template(job)
    words = ["gcloud", "dataflow", "flex-template", "run", options.job_name]
    words += [f"--template-file-gcs-location={template}", f"--temp-location={options.bucket.temp}"]
    words += [f"--staging-location={options.bucket.staging}", f"--region={options.region}"]
    words += [f"--project={options.project}"] if options.project else []
    words += [f"--parameters={joined(values)}"]
    words += ["--enable-streaming-engine"] if metadata["streaming"] else []
    if metadata["streaming"]:
        words.append(f"--additional-experiments=streaming_mode_{streaming_mode(values_by_name)}")
    words += ["--update"] if values_by_name.get("update") else []
    return shell.line(*words, *rest)


def main(argv: list[str]) -> int:
    """Starts a job, or prints the call that would; the exit code."""
    arguments, rest = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    first = argparse.ArgumentParser(
        prog="templates/run",
        usage="%(prog)s JOB --bucket BUCKET --region REGION --PARAMETER VALUE ... [options]",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = shell.jobs()
    first.add_argument("job", choices=names, metavar="JOB", help=f"what to start: {', '.join(names)}")
    job = first.parse_args(arguments[:1]).job
    metadata = json.loads((shell.FOLDER / job / "metadata.json").read_text("utf-8"))
    options = parser(job, metadata).parse_args(arguments[1:])
    return shell.make([call(job, metadata, options, rest)], print_only=options.print_only)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
