"""`timebeam serve`: OpenTSDB's read API over HTTP, for Grafana and scripts, and endpoints for producers."""

from __future__ import annotations

import argparse
import errno
import gc
import json
import logging
import os
import re
import socket
from typing import TYPE_CHECKING, Any

from timebeam.pipelines.local.pubsub import check_topic
from timebeam.pipelines.options.catalogue import format_parameters
from timebeam.pipelines.options.parameters import TOPIC, UsageError, flag, parsed_file, usage_errors
from timebeam.pipelines.options.values import create_command, place_of, readable_of, rollups_of, target_of
from timebeam.pipelines.serve.cache import Api, Caches
from timebeam.pipelines.serve.writes import FORMATS
from timebeam.schema.archive.archive_cell import codec
from timebeam.schema.archive.view import find_archive
from timebeam.transforms.bigtable.existing_tables import check_tables
from timebeam.transforms.query.budget import Budget

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from timebeam.pipelines.serve.writes.front_door import FrontDoor

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
    listening: dict[str, Any] = {
        "host": options.bind,
        "port": options.port,
        "http": "timebeam.pipelines.serve.connections:TimedProtocol",
        "access_log": False,
    }
    _check_free(options.bind, options.port, "--port")
    if options.topic:
        listening |= {"limit_concurrency": CONNECTIONS, "timeout_graceful_shutdown": GRACE_SECONDS}
        if options.telnet_port:
            _check_free(options.bind, options.telnet_port, "--telnet-port")
        check_topic(options.topic)
    print(f"serving at http://{options.bind}:{options.port}; Ctrl-C stops it", flush=True)
    if options.workers == 1:
        uvicorn.run(app, **listening, log_level="warning")
        return 0
    os.environ[OPTIONS_VARIABLE] = json.dumps(vars(options))
    factory, loop = f"{__name__}:worker", "timebeam.pipelines.serve.connections:SharingLoop"
    uvicorn.run(factory, factory=True, workers=options.workers, loop=loop, **listening, log_level="warning")
    return 0


CONNECTIONS = 1_000
"""Of one process that takes points; more are answered with 503."""

_GC_OBJECTS = 10_000
"""New objects until the next search for cycles."""

GRACE_SECONDS = 30
"""How long a process that is stopped waits for the bodies that it has begun to take."""


def _check_free(bind: str, port: int, option: str) -> None:
    """Raises UsageError if nothing can listen there; `option` is that of the port."""
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    try:
        socket.create_server((bind, port), family=family).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UsageError(f"port {port} of {bind} is in use: choose another {option}") from error
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise UsageError(
            f"cannot listen on {bind}:{port}: {reason}: choose another --bind or {option}"
        ) from error


def worker() -> Starlette:
    """The application of one of several processes."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    logging.getLogger("timebeam.serve").setLevel(logging.INFO)
    return _application(argparse.Namespace(**json.loads(os.environ[OPTIONS_VARIABLE])))


def _application(options: argparse.Namespace) -> Starlette:
    """The application that the options describe."""
    from timebeam.pipelines.serve.web_application import ServerLimits, application

    budget = Budget(
        options.max_rows,
        options.max_points,
        options.max_shown,
        options.max_bytes,
        float(options.max_seconds),
    )
    limits = ServerLimits(budget, options.max_queries, options.max_waiting, options.max_body)
    app = application(_api(options), limits, _front_door(options), options.bind, options.allowed_host)
    # Rows are many small objects, which would trigger a search for cycles through all that is imported.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_OBJECTS)
    return app


def _api(options: argparse.Namespace) -> Api | None:
    """What is read; None if the options say that nothing is.

    Raises:
      UsageError: the options are wrong.
      CodecMissingError: the package that reads the archive is missing.
    """
    if options.write_only:
        return None
    layout, target = readable_of(options), target_of(options)
    if find_archive(layout) is not None:
        codec()
    rollups = rollups_of(place_of(options), options.rollup_config) if options.rollup_config else None
    check_tables(target, layout.tables(), create_command(options))
    caches = Caches(layout, options.cache_bytes) if options.cache_bytes else None
    return Api(target, layout, rollups, options.ignored_labels, caches=caches)


def _front_door(options: argparse.Namespace) -> FrontDoor | None:
    """What takes points; None if the options name no topic for them.

    Raises:
      UsageError: the options are wrong.
    """
    if not options.topic:
        for name in ("telnet_port", "token_file", "write_only"):
            if getattr(options, name):
                raise UsageError(f"{flag(name)} needs --topic, where points go")
        return None
    if not re.fullmatch(TOPIC, options.topic):
        raise UsageError(f"--topic {options.topic} is not projects/P/topics/T")
    if options.telnet_port and options.token_file:
        raise UsageError(
            "telnet lines carry no token: run a second server for --telnet-port, without --token-file"
        )
    from timebeam.pipelines.serve.writes.bodies import BodyParser
    from timebeam.pipelines.serve.writes.front_door import FrontDoor, Tokens, WriteLimits
    from timebeam.pipelines.serve.writes.publisher import Publisher
    from timebeam.pipelines.serve.writes.telnet import TelnetAddress
    from timebeam.schema.formats import message_format

    tokens = None
    if options.token_file:
        tokens = parsed_file(options.token_file, "file of tokens", Tokens.parse)
    telnet = None
    if options.telnet_port:
        telnet = TelnetAddress(options.bind, options.telnet_port, shared=options.workers > 1)
    format_options = {
        parameter.name: value
        for parameter in format_parameters()
        if (value := getattr(options, parameter.name, None)) is not None
    }
    with usage_errors():
        for name in FORMATS:
            message_format(name, format_options)
    limits = WriteLimits(held_bytes=options.max_held)
    return FrontDoor(Publisher(options.topic), BodyParser(format_options), limits, tokens, telnet)
