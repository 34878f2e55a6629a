"""`timebeam serve`: OpenTSDB's read API over HTTP, for Grafana and scripts, and endpoints for producers."""

from __future__ import annotations

import dataclasses
import errno
import gc
import json
import logging
import os
import re
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from timebeam.pipelines.local.pubsub import check_topic
from timebeam.pipelines.options.parameters import TOPIC, UsageError, flag, parsed_file, usage_errors
from timebeam.pipelines.options.place import Place
from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.writes import FORMATS
from timebeam.schema.archive.archive_cell import codec
from timebeam.schema.archive.view import find_archive
from timebeam.transforms.query.budget import Budget

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from timebeam.pipelines.serve.writes.front_door import FrontDoor

OPTIONS_VARIABLE = "TIMEBEAM_SERVE_OPTIONS"
"""Passes place and options to worker processes, as JSON."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServeOptions:
    """What `timebeam serve` serves, where, and within which limits."""

    bind: str
    allowed_host: Sequence[str]
    port: int
    workers: int
    rollup_config: str | None
    ignored_labels: Sequence[str]
    cache_bytes: int
    max_rows: int
    max_points: int
    max_shown: int
    max_bytes: int
    max_seconds: int
    max_queries: int
    max_waiting: int
    max_body: int
    topic: str | None
    write_only: bool
    telnet_port: int | None
    token_file: str | None
    max_held: int
    formats: Sequence[str]
    format_options: Mapping[str, Any]


def run(place: Place, options: ServeOptions) -> int:
    """Serves until it is stopped."""
    try:
        import uvicorn
    except ImportError as error:
        raise UsageError(f"the server needs more packages: pip install -e '.[serve]' ({error})") from error
    app = _application(place, options)
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
    os.environ[OPTIONS_VARIABLE] = json.dumps([dataclasses.asdict(place), dataclasses.asdict(options)])
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
    place, options = json.loads(os.environ[OPTIONS_VARIABLE])
    return _application(Place(**place), ServeOptions(**options))


def _application(place: Place, options: ServeOptions) -> Starlette:
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
    app = application(_api(place, options), limits, _front_door(options), options.bind, options.allowed_host)
    # Rows are many small objects, which would trigger a search for cycles through all that is imported.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_OBJECTS)
    return app


def _api(place: Place, options: ServeOptions) -> Api | None:
    """What is read; None if the options say that nothing is.

    Raises:
      UsageError: the options are wrong.
      CodecMissingError: the package that reads the archive is missing.
    """
    if options.write_only:
        return None
    store = place.readable()
    if find_archive(store) is not None:
        codec()
    api = Api.of(place, store=store, rollup_config=options.rollup_config, cache_bytes=options.cache_bytes)
    api.check_tables()
    return dataclasses.replace(api, ignored_labels=options.ignored_labels)


def _front_door(options: ServeOptions) -> FrontDoor | None:
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
    formats = [name for text in options.formats for name in text.split(",")]
    with usage_errors():
        for name in (*FORMATS, *formats):
            message_format(name, options.format_options)
    limits, parser = WriteLimits(held_bytes=options.max_held), BodyParser(options.format_options, formats)
    return FrontDoor(Publisher(options.topic), parser, limits, tokens, telnet, formats)
