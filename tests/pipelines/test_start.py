"""What commands import before they have read their options, and those that read without a pipeline at all.

Beam takes more than a second, Google's clients half a second; numpy and pyarrow 0.15 s.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from timebeam.pipelines.commands import COMMANDS, find_command

SLOW = ("apache_beam", "google.api_core", "grpc", "matplotlib", "pandas", "plotly", "starlette", "uvicorn")
"""What no command needs to explain itself, or to refuse an option."""

READERS = ("check", "config", "query", "serve", "series", "suggest", "tables")
"""Commands that read Bigtable by themselves, without a pipeline."""

_PROGRAM = f"""\
import contextlib, io, json, sys
from timebeam.pipelines import cli

loaded = {{}}
for line in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            code = cli.main(line)
        except SystemExit as stop:
            code = stop.code
    loaded[" ".join(line)] = [code or 0, sorted(sys.modules.keys() & set({SLOW!r}))]
print(json.dumps(loaded))
"""


def started(*lines: list[str]) -> dict[str, tuple[int, list[str]]]:
    """By command line, its exit code and which of `SLOW` is imported then, in one process."""
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM, json.dumps(lines)], capture_output=True, text=True, check=True
    )
    return {line: (code, modules) for line, (code, modules) in json.loads(ran.stdout).items()}


def test_help_imports_no_slow_module() -> None:
    loaded = started(["--help"], ["--version"], *([command, "--help"] for command in COMMANDS))
    assert loaded == dict.fromkeys(loaded, (0, []))


def test_wrong_usage_imports_no_slow_module() -> None:
    wrong = [["no-command"], *([command, "--no_such_option=1"] for command in COMMANDS)]
    wrong += [["ingest", "--format", "none"], ["copy", "--from", "opentsdb"], ["rollup", "--salt_width=x"]]
    loaded = started(*wrong)
    assert loaded == dict.fromkeys(loaded, (2, []))


def test_completion_imports_no_slow_module() -> None:
    assert started(["completion", "bash"]) == {"completion bash": (0, [])}


@pytest.mark.parametrize("command", READERS)
def test_readers_run_without_beam_and_the_admin_client(command: str) -> None:
    modules = f"{find_command(command).runs.partition(':')[0]}, timebeam.pipelines.options.stored"
    program = f"import sys, {modules}; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    unused = {"apache_beam", "matplotlib", "plotly"}
    if command != "tables":  # which creates them, with the admin client
        unused |= {"aiohttp", "google.cloud.bigtable", "google.cloud.bigtable_admin_v2"}
    assert unused.intersection(ran.stdout.split()) == set()
