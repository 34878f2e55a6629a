"""Terraform's files as plain Python, and its commands."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import hcl2

ROOT = Path(__file__).resolve().parents[3]
TERRAFORM = shutil.which("terraform")


@functools.cache
def parsed(path: Path) -> dict[str, Any]:
    """A file's blocks, as python-hcl2 gives them; texts without their quotes."""
    with path.open() as file:
        return unquoted(hcl2.load(file))


def unquoted(value: Any) -> Any:
    """Newer versions of python-hcl2 leave texts in quotes."""
    if isinstance(value, dict):
        return {unquoted(key): unquoted(one) for key, one in value.items() if key != "__is_block__"}
    if isinstance(value, list):
        return [unquoted(one) for one in value]
    if isinstance(value, str) and len(value) > 1 and value[0] == value[-1] == '"':
        return value[1:-1]
    return value


def variables(path: Path) -> dict[str, dict[str, Any]]:
    """The variables of a file by name."""
    return {name: body for block in parsed(path)["variable"] for name, body in block.items()}


def terraform(folder: Path, *arguments: str, code: int = 0) -> str:
    """What a Terraform command prints."""
    environment = {name: value for name, value in os.environ.items() if name != "TF_CLI_CONFIG_FILE"}
    ran = subprocess.run(
        [TERRAFORM or "", arguments[0], "-no-color", *arguments[1:]],
        cwd=folder,
        env=environment | {"CHECKPOINT_DISABLE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == code, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr
