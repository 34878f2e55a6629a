"""`timebeam serve`: OpenTSDB's read API over HTTP, for Grafana and scripts."""

from __future__ import annotations

import argparse
import json
import logging
import os
import socket
from typing import TYPE_CHECKING

from timebeam.pipelines.options.parameters import UsageError
from timebeam.pipelines.options.values import create_command, readable_of, rollups_of, target_of
from timebeam.pipelines.serve.api import Api
from timebeam.transforms.bigtable.existing import check_tables
from timebeam.transforms.query.budget import Budget

if TYPE_CHECKING:
    from starlette.applications import Starlette

OPTIONS_VARIABLE = "TIMEBEAM_SERVE_OPTIONS"
"""Passes the options to worker processes, as JSON."""


def run(options: argparse.Namespace) -> int:
    """Serves until it is stopped."""
    try:
        import uvicorn
    except ImportError as error:
        raise UsageError(f"the server needs more packages: pip install -e '.[serve]' ({error})") from error
    app = _application(options)
    logging.getLogger("timebeam.serve").setLevel(logging.INFO)
    listening = {"host": options.bind, "port": options.port, "http": "h11", "access_log": False}
    _check_free(options.bind, options.port)
    print(f"serving at http://{options.bind}:{options.port}; Ctrl-C stops it", flush=True)
    if options.workers == 1:
        uvicorn.run(app, **listening, log_level="warning")
        return 0
    os.environ[OPTIONS_VARIABLE] = json.dumps(vars(options))
    factory = f"{__name__}:worker"
    uvicorn.run(factory, factory=True, workers=options.workers, **listening, log_level="warning")
    return 0


def _check_free(bind: str, port: int) -> None:
    """Raises UsageError if nothing can listen there."""
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    try:
        socket.create_server((bind, port), family=family).close()
    except OSError as error:
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise UsageError(
            f"cannot listen on {bind}:{port}: {reason}: choose another --bind or --port"
        ) from error


def worker() -> Starlette:
    """The application of one of several processes."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    logging.getLogger("timebeam.serve").setLevel(logging.INFO)
    return _application(argparse.Namespace(**json.loads(os.environ[OPTIONS_VARIABLE])))


def _application(options: argparse.Namespace) -> Starlette:
    """The application that the options describe."""
    from timebeam.pipelines.serve.app import ServerLimits, application

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
    limits = ServerLimits(budget, options.max_queries, options.max_waiting, options.max_body)
    return application(Api(target, layout, rollups, options.ignored_labels), limits)
