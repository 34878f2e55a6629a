"""What a flex template's launcher starts: the command of the job that the image was built for.

Dataflow runs `python templates/main.py --NAME=VALUE …`, the template's parameters and Beam's options as
texts, and waits for the job file that the pipeline leaves at `--template_location`.

| variable of the image | content |
|---|---|
| TIMEBEAM_JOB | a job of `timebeam.pipelines.deploy.jobs` |
| TIMEBEAM_IMAGE | the image's own name, which is that of its workers too |
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from timebeam.pipelines import cli
from timebeam.pipelines.deploy.jobs import JOBS

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
