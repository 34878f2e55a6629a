"""Commands and functions in processes of their own, which start at once.

They are forked from one process that has imported Beam and Google's clients and does nothing else.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
"""Of multiprocessing. Children have the environment that the first of them was started with."""

SHORT_LEASE_SECONDS = 5.0
"""Of children that hold a lease, as in the process of the tests (`quick_graphs`)."""

CONTEXT.set_forkserver_preload(
    [
        "timebeam.pipelines.cli",
        "timebeam.pipelines.jobs.run",
        "timebeam.pipelines.jobs.run_input",
        "timebeam.pipelines.commands.ingest_and_query",
        "timebeam.pipelines.store.closed_hours",
        "timebeam.transforms.bigtable.create_tables",
        "google.cloud.bigtable.data",
        "google.cloud.bigtable_v2",
    ]
)


def start_command(
    arguments: Sequence[str | Path],
    output: Path,
    environment: Mapping[str, str],
    before: Callable[[], None] | None = None,
) -> BaseProcess:
    """A running `timebeam` command; it ends with this process at the latest.

    Args:
      output: a new folder; standard output and error go to its files `out` and `err`.
      environment: variables beside those of this process.
      before: what the process calls before the command.
    """
    output.mkdir()
    return start(_run, list(map(str, arguments)), output, os.environ | environment, before)


def start(function: Callable[..., None], *arguments: Any) -> BaseProcess:
    """A running function of a module; its process ends with this one at the latest."""
    process = CONTEXT.Process(target=_to_the_end, args=(function, arguments), daemon=True)
    process.start()
    return process


def _to_the_end(function: Callable[..., None], arguments: Sequence[Any]) -> None:
    """As a program of its own, and not as multiprocessing: with what is to be done at exit."""
    try:
        function(*arguments)
    finally:
        atexit._run_exitfuncs()


def _run(
    arguments: list[str], output: Path, environment: Mapping[str, str], before: Callable[[], None] | None
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    for stream, name in ((sys.stdout, "out"), (sys.stderr, "err")):
        os.dup2(os.open(output / name, os.O_WRONLY | os.O_CREAT), stream.fileno())
    from timebeam.pipelines import cli
    from timebeam.transforms.care import range_leases

    range_leases.LEASE_SECONDS = SHORT_LEASE_SECONDS
    if before is not None:
        before()

    sys.exit(cli.main(arguments))
