"""Builds the images of the jobs in Cloud Build, and puts their templates into a bucket.

Needs Python and gcloud only; the classic template also needs timebeam (`make .venv/ready`).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import shell

EXAMPLES = """\
examples:
  templates/build --repository europe-west1-docker.pkg.dev/my-project/timebeam --tag 0.1.0 \\
      --bucket gs://my-bucket/timebeam
  templates/build rollup compact ... --print_only
  templates/build rollup_classic ... --project my-project --region europe-west1 -- --salt_width 1

what stands behind `--` are options of the classic template's program; templates/run starts a job"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="templates/build",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    flex = [job for job in shell.jobs() if not shell.is_classic(job)]
    made.add_argument(
        "jobs",
        nargs="*",
        metavar="JOB",
        help=f"{', '.join(shell.jobs())} (default: all but the classic one)",
    )
    made.add_argument("--repository", required=True, help="of images: REGION-docker.pkg.dev/PROJECT/NAME")
    made.add_argument("--tag", required=True, help="of the images; never twice the same")
    made.add_argument("--bucket", required=True, type=shell.bucket, help="gs://BUCKET, or a folder in one")
    made.add_argument("--project", help="default: gcloud's own")
    made.add_argument("--region", help="rollup_classic: of Dataflow")
    made.add_argument("--print_only", action="store_true", help="print the calls, and make none")
    made.set_defaults(flex=flex)
    return made


def calls(options: argparse.Namespace, rest: list[str]) -> list[str]:
    """The calls that the options ask for."""
    chosen = options.jobs or options.flex
    flex = [job for job in chosen if not shell.is_classic(job)]
    project = [f"--project={options.project}"] if options.project else []
    images = {job: f"{options.repository}/timebeam-{job}:{options.tag}" for job in shell.jobs()}
    source = Path(shell.FOLDER.parent)
    made = []
    if flex:
        given = f"_REPOSITORY={options.repository},_TAG={options.tag},_JOBS={' '.join(flex)}"
        config = shell.FOLDER / "cloudbuild.yaml"
        words = ["gcloud", "builds", "submit", source, f"--config={config}", f"--substitutions={given}"]
        made.append(shell.line(*words, *project))
    for job in flex:
        named = shell.line("sed", f"s|${{IMAGE}}|{images[job]}|", shell.FOLDER / job / "image_spec.json")
        made.append(f"{named} | {shell.line('gcloud', 'storage', 'cp', '-', options.bucket.template(job))}")
    for job in chosen:
        if shell.is_classic(job):
            template = options.bucket.template(job)
            made.append(
                shell.line(
                    *(source / ".venv/bin/python", "-m", f"pipelines.{job}", *project),
                    *(f"--region={options.region}", f"--template_location={template}"),
                    *(
                        f"--staging_location={options.bucket.staging}",
                        f"--temp_location={options.bucket.temp}",
                    ),
                    *(f"--sdk_container_image={images['rollup']}", *rest),
                )
            )
            metadata = shell.FOLDER / job / "metadata.json"
            made.append(shell.line("gcloud", "storage", "cp", metadata, f"{template}_metadata"))
    return made


def main(argv: list[str]) -> int:
    """Makes the calls, or prints them; the exit code."""
    known, rest = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    own = parser()
    options = own.parse_args(known)
    for job in options.jobs:
        if job not in shell.jobs():
            own.error(f"no job {job!r}: choose of {', '.join(shell.jobs())}")
    classic = [job for job in options.jobs if shell.is_classic(job)]
    if classic and not (options.project and options.region):
        own.error(f"{classic[0]} needs --project and --region, which a classic template is made for")
    if rest and not classic:
        own.error("options behind -- are of rollup_classic, which is not asked for")
    return shell.make(calls(options, rest), print_only=options.print_only)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
