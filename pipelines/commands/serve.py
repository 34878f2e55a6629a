"""`timebeam serve`: OpenTSDB's read API over HTTP, for Grafana and scripts."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from timebeam.pipelines.options.command_line import CommandParser, parser_of
from timebeam.pipelines.options.parameters import (
    BIGTABLE,
    LAYOUT,
    TABLES,
    Parameter,
    UsageError,
    positive,
    whole,
)
from timebeam.pipelines.options.stored import use_stored
from timebeam.pipelines.options.values import create_command, readable_of, target_of
from timebeam.pipelines.rollup.config import rollups_of
from timebeam.pipelines.serve.api import Api
from timebeam.transforms.bigtable.tables import check_tables
from timebeam.transforms.query.budget import Budget

if TYPE_CHECKING:
    from starlette.applications import Starlette

ARGUMENTS_VARIABLE = "TIMEBEAM_SERVE_ARGUMENTS"
"""Passes the command line to worker processes."""

_MAX_PORT = 65_535

PARAMETERS = (
    Parameter("bind", "address to listen on; 0.0.0.0 for all", "Server", default="127.0.0.1"),
    Parameter("port", "port to listen on", "Server", positive, 4242, most=_MAX_PORT),
    Parameter("workers", "worker processes", "Server", positive, 1, most=64),
    Parameter(
        "rollup_config",
        "opentsdb: the rollup configuration; what is rolled up is not read point by point "
        "(docs/how-to/rollups.md)",
        "Server",
        setting=True,
    ),
    Parameter(
        "ignored_labels",
        "external labels of a Prometheus that reads from here, which no series has",
        "Server",
        default=[],
        many=True,
    ),
    Parameter("max_rows", "rows that a request may read", "Budgets", positive, 1_000_000),
    Parameter("max_points", "points that a request may read, or fill in", "Budgets", positive, 20_000_000),
    Parameter("max_shown", "points of an answer", "Budgets", positive, 1_000_000),
    Parameter("max_bytes", "bytes that a request may read", "Budgets", positive, 1 << 30),
    Parameter("max_seconds", "seconds that a request may take", "Budgets", positive, 60, most=3600),
    Parameter("max_queries", "requests that a process works on at once", "Budgets", positive, 4, most=256),
    Parameter("max_waiting", "requests that wait for their turn; others get a 503", "Budgets", whole, 64),
    Parameter("max_body", "bytes of the body of a request", "Budgets", positive, 1 << 20),
    *LAYOUT,
    TABLES,
    *BIGTABLE,
)

EXAMPLES = """\
  timebeam serve --layout opentsdb
  timebeam serve --layout opentsdb --rollup_config rollups.json --port 4242 --workers 2
  timebeam serve --layout heroic --max_seconds 20 --max_points 10000000"""


def command_parser() -> CommandParser:
    """The parser of the command."""
    return parser_of("serve", "Serves OpenTSDB's read API.", EXAMPLES, PARAMETERS)


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until it is stopped."""
    options = command_parser().parse_args(argv)
    try:
        import uvicorn
    except ImportError as error:
        raise UsageError(f"the server needs more packages: pip install -e '.[serve]' ({error})") from error
    use_stored(options)
    app = _application(options)
    logging.getLogger("timebeam.serve").setLevel(logging.INFO)
    listening = {"host": options.bind, "port": options.port, "http": "h11", "access_log": False}
    _check_free(options.bind, options.port)
    print(f"serving at http://{options.bind}:{options.port}; Ctrl-C stops it", flush=True)
    if options.workers == 1:
        uvicorn.run(app, **listening, log_level="warning")
        return 0
    os.environ[ARGUMENTS_VARIABLE] = shlex.join(argv or ())
    factory = "timebeam.pipelines.commands.serve:worker"
    uvicorn.run(factory, factory=True, workers=options.workers, **listening, log_level="warning")
    return 0


def _check_free(bind: str, port: int) -> None:
    """Raises UsageError if nothing can listen there."""
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    try:
        socket.create_server((bind, port), family=family).close()
    except OSError as error:
        raise UsageError(
            f"cannot listen on {bind}:{port}: {error.strerror}: choose another --port"
        ) from error


def worker() -> Starlette:
    """The application of one of several processes."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    logging.getLogger("timebeam.serve").setLevel(logging.INFO)
    options = command_parser().parse_args(shlex.split(os.environ[ARGUMENTS_VARIABLE]))
    use_stored(options)
    return _application(options)


def _application(options: argparse.Namespace) -> Starlette:
    """The application that the options describe."""
    from timebeam.pipelines.serve.app import Limits, application

    layout, target = readable_of(options), target_of(options)
    rollups = rollups_of(options) if options.rollup_config else None
    check_tables(target, layout.tables(), create_command(options))
    budget = Budget(
        options.max_rows,
        options.max_points,
        options.max_shown,
        options.max_bytes,
        float(options.max_seconds),
    )
    limits = Limits(budget, options.max_queries, options.max_waiting, options.max_body)
    return application(Api(target, layout, rollups, options.ignored_labels), limits)
