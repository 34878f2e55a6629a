"""Builds the images of the jobs in Cloud Build, and puts their templates into a bucket.

Needs Python and gcloud only.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import shell

EXAMPLES = """\
examples:
  templates/build --repository europe-west1-docker.pkg.dev/my-project/timebeam --tag 0.1.0 \\
      --bucket gs://my-bucket/timebeam
  templates/build rollup compact ... --print_only

templates/run starts a job"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    command_line = argparse.ArgumentParser(
        prog="templates/build",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command_line.add_argument(
        "jobs",
        nargs="*",
        metavar="JOB",
        help=f"{', '.join(shell.jobs())} (default: all)",
    )
    command_line.add_argument(
        "--repository", required=True, help="image repository: REGION-docker.pkg.dev/PROJECT/NAME"
    )
    command_line.add_argument("--tag", required=True, help="tag of the images; use a new one for each build")
    command_line.add_argument(
        "--launcher_tag", help="release of Google's launcher (default: that of templates/Dockerfile)"
    )
    command_line.add_argument(
        "--bucket", required=True, type=shell.bucket, help="gs://BUCKET, or a folder in one"
    )
    command_line.add_argument("--project", help="default: gcloud's own")
    command_line.add_argument("--print_only", action="store_true", help="print the commands; do not run them")
    return command_line


def calls(options: argparse.Namespace) -> list[str]:
    """The calls that the options ask for."""
    jobs = options.jobs or shell.jobs()
    project = [f"--project={options.project}"] if options.project else []
    substitutions = f"_REPOSITORY={options.repository},_TAG={options.tag},_JOBS={' '.join(jobs)}"
    if options.launcher_tag:
        substitutions += f",_LAUNCHER_TAG={options.launcher_tag}"
    build: list[str | Path] = [
        "gcloud",
        "builds",
        "submit",
        shell.FOLDER.parent,
        f"--config={shell.FOLDER / 'cloudbuild.yaml'}",
    ]
    lines = [shell.line(*build, f"--substitutions={substitutions}", *project)]
    for job in jobs:
        image = f"{options.repository}/timebeam-{job}:{options.tag}"
        upload = shell.line("gcloud", "storage", "cp", "-", options.bucket.template(job))
        lines.append(f"{specification(job, image)} | {upload}")
    return lines


def specification(job: str, image: str) -> str:
    """The command that prints the ContainerSpec of a job: its metadata, and the image."""
    members = json.dumps({"image": image, "sdkInfo": {"language": "PYTHON"}})
    start = shell.line("echo", members.removesuffix("}") + ', "metadata":')
    return f"{{ {start}; {shell.line('cat', shell.FOLDER / job / 'metadata.json')}; echo }}; }}"


def main(argv: list[str]) -> int:
    """Makes the calls, or prints them; the exit code."""
    command_line = parser()
    options = command_line.parse_args(argv)
    for job in options.jobs:
        if job not in shell.jobs():
            command_line.error(f"no job {job!r}: choose from {', '.join(shell.jobs())}")
    return shell.make(calls(options), print_only=options.print_only)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
