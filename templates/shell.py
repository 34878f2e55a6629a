"""What `build` and `run` share: calls as lines of a shell, printed before they are made."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parent


class Bucket(NamedTuple):
    """Where a project keeps its templates: gs://BUCKET, or a folder in one, and what lies there."""

    path: str

    def template(self, job: str) -> str:
        """The image specification that a launch names."""
        return f"{self.path}/templates/{job}.json"

    @property
    def staging(self) -> str:
        """Where files of jobs are staged."""
        return f"{self.path}/staging"

    @property
    def temp(self) -> str:
        """Where jobs keep temporary files."""
        return f"{self.path}/temp"


def bucket(text: str) -> Bucket:
    """The bucket that a text names.

    Raises:
      ValueError: it names none.
    """
    if not text.startswith("gs://") or len(text.strip("/")) <= len("gs://"):
        raise ValueError(text)
    return Bucket(text.rstrip("/"))


def jobs() -> list[str]:
    """The jobs that have a template."""
    return sorted(path.parent.name for path in FOLDER.glob("*/metadata.json"))


def line(*words: str | Path) -> str:
    """Words as one command of a shell."""
    return shlex.join(map(str, words))


def make(calls: list[str], *, print_only: bool) -> int:
    """Prints the calls, and makes them unless they are only to be printed, up to the first that fails.

    Returns:
      the exit code.
    """
    for call in calls:
        print(call, flush=True)
        if not print_only:
            code = subprocess.run(["bash", "-euo", "pipefail", "-c", call], check=False).returncode
            if code:
                return code
    return 0
