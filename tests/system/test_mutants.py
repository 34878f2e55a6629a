"""Mutants of good messages: `make test` tries some of each form, `make test-long` more, the program all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.inputs.samples import forms

ROOT = Path(__file__).parents[2]


def check(*flags: str) -> None:
    """No finding; in a program, since it forks, which a process with threads must not."""
    command = [sys.executable, "-m", "tests.system.mutants", *flags]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_some_mutants_of_every_form() -> None:
    check("--count=8")


@pytest.mark.long
@pytest.mark.parametrize("form", forms())
def test_mutants_become_points_or_rejections(form: str) -> None:
    check("--form", form, "--count=100", "--workers=1")
