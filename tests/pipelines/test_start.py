"""What commands import before they read their options: Beam alone takes a second."""

from __future__ import annotations

import subprocess
import sys

import pytest

ALONE = ("completion", "init", "layout", "plan")
"""Commands that reach no service."""
READERS = ("check", "config", "query", "series", "suggest", "tables")
"""Commands that read Bigtable by themselves, without a pipeline."""


@pytest.mark.parametrize(
    ("commands", "unused"),
    [
        (ALONE, {"apache_beam", "google.api_core", "grpc", "matplotlib"}),
        (READERS, {"apache_beam", "matplotlib"}),
    ],
)
def test_commands_import_only_what_they_need(commands: tuple[str, ...], unused: set[str]) -> None:
    program = (
        "import sys\n"
        "from importlib import import_module\n"
        "from timebeam.pipelines.cli import module_of\n"
        f"for command in {commands!r}: import_module(module_of(command)).command_parser()\n"
        "print(*sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert unused.intersection(ran.stdout.split()) == set()
