"""The command that serves: serve."""

from __future__ import annotations

from timebeam.pipelines.options.command_line import Command
from timebeam.pipelines.options.formats import FORMAT
from timebeam.pipelines.options.parameters import (
    BIGTABLE,
    LAYOUT,
    TABLES,
    TOPIC,
    Parameter,
    boolean,
    positive,
    whole,
)
from timebeam.pipelines.serve.writes import FORMATS

_MAX_PORT = 65_535

TAKING_POINTS = (
    Parameter(
        "topic",
        "take points from producers too, and publish them to this topic: projects/P/topics/T",
        "Writes",
        regex=TOPIC,
        example="projects/my-project/topics/points",
        setting=True,
    ),
    Parameter("write_only", "take points only, and open no tables", "Writes", boolean, False),
    Parameter("telnet_port", "take telnet `put` lines on this port", "Writes", positive, most=_MAX_PORT),
    Parameter(
        "token_file", "file with the tokens of writers, one per line; without it everyone may write", "Writes"
    ),
    Parameter(
        "max_held",
        "bytes of bodies that a process holds until Pub/Sub has confirmed them; more requests get a 503",
        "Writes",
        positive,
        256 << 20,
    ),
    *(parameter for parameter in FORMAT if set(FORMATS) & set((parameter.shown_for or ("", ()))[1])),
)

SERVE_COMMAND = Command(
    "serve",
    "Serves OpenTSDB's read API, and takes points for Pub/Sub.",
    runs="timebeam.pipelines.serve.server:run",
    takes_archive=True,
    parameters=(
        Parameter("bind", "address to listen on; 0.0.0.0 for all", "Server", default="127.0.0.1"),
        Parameter(
            "allowed_host",
            "more names by which clients, tunnels and proxies may call a server on a loopback address, or, "
            "if given, on any",
            "Server",
            default=[],
            many=True,
        ),
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
            "external labels of the Prometheus that reads from this server; no series has them",
            "Server",
            default=[],
            many=True,
        ),
        Parameter(
            "cache_bytes",
            "bytes per process for answers about past ranges; 0 turns off all caches, also of names and UIDs",
            "Server",
            whole,
            1 << 26,
        ),
        Parameter("max_rows", "rows that a request may read", "Budgets", positive, 1_000_000),
        Parameter(
            "max_points", "points that a request may read, or fill in", "Budgets", positive, 20_000_000
        ),
        Parameter("max_shown", "points of an answer", "Budgets", positive, 1_000_000),
        Parameter("max_bytes", "bytes that a request may read", "Budgets", positive, 1 << 30),
        Parameter("max_seconds", "seconds that a request may take", "Budgets", positive, 60, most=3600),
        Parameter(
            "max_queries", "requests that a process works on at once", "Budgets", positive, 4, most=256
        ),
        Parameter("max_waiting", "requests that wait for their turn; others get a 503", "Budgets", whole, 64),
        Parameter("max_body", "bytes of the body of a request", "Budgets", positive, 1 << 20),
        *TAKING_POINTS,
        *LAYOUT,
        TABLES,
        *BIGTABLE,
    ),
    examples="""\
  timebeam serve --layout opentsdb
  timebeam serve --layout opentsdb --rollup_config rollups.json --port 4242 --workers 2
  timebeam serve --layout heroic --max_seconds 20 --max_points 10000000
  timebeam serve --write_only --topic projects/my-project/topics/points --telnet_port 4243""",
)
