"""The console script `timebeam`: finds the command, and turns errors into one line and an exit code.

Exit codes: 0 done, 1 failed or damage found, 2 wrong usage, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import warnings
from collections.abc import Sequence

COMMANDS = {
    "emulator": ("pipelines.local.emulator", "a local Bigtable in the foreground"),
    "tables": ("pipelines.tables", "create the tables of a layout, set how long cells are kept"),
    "ingest": ("pipelines.ingest", "points from files or Pub/Sub into Bigtable"),
    "replay": ("pipelines.replay", "dead letters through the pipeline again"),
    "generate": ("pipelines.generate", "points of a seed, into a file or Pub/Sub"),
    "query": ("pipelines.query", "points back, aggregated as OpenTSDB does"),
    "series": ("pipelines.series", "which series there are, by patterns"),
    "suggest": ("pipelines.suggest", "names of metrics, tag keys and tag values"),
    "meta": ("pipelines.meta", "OpenTSDB's meta data of series, from the data"),
    "trees": ("pipelines.trees", "OpenTSDB's trees: rules, branches, leaves"),
    "copy": ("pipelines.copy", "points of one layout into another"),
    "reindex": ("pipelines.reindex", "index tables made anew, from the keys of the data"),
    "rollup": ("pipelines.rollup", "rollups and pre-aggregates of a day"),
    "compact": ("pipelines.compact", "rows of closed hours into one cell each"),
    "check": ("pipelines.check", "does every row decode, are the UIDs sound"),
    "plan": ("pipelines.plan", "what a load of points needs: rows, bytes, nodes"),
    "layout": ("pipelines.layout", "explain declared tables, draw their key heat"),
}

_EMULATOR_WARNING = "Connecting to Bigtable emulator"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _main(arguments)
    except BrokenPipeError:  # the reader of our output has gone: `timebeam query … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _main(arguments: list[str]) -> int:
    """The same, for a reader of the output that stays."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help(), flush=True)
        return 0 if arguments else 2
    command = arguments.pop(0)
    if command not in COMMANDS:
        print(f"timebeam: no command {command!r}\n\n{_help()}", file=sys.stderr)
        return 2
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    if not os.environ.get("BIGTABLE_EMULATOR_HOST"):
        os.environ.pop("BIGTABLE_EMULATOR_HOST", None)  # set but empty, which the client takes for a host
    warnings.filterwarnings("ignore", _EMULATOR_WARNING, RuntimeWarning)
    # Of worker processes too.
    os.environ.setdefault("PYTHONWARNINGS", f"ignore:{_EMULATOR_WARNING}:RuntimeWarning")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    try:
        return _run(command, arguments)
    except KeyboardInterrupt:
        print(f"timebeam {command}: stopped; run it again to complete the work", file=sys.stderr)
        return 130


def _run(command: str, arguments: list[str]) -> int:
    """Runs the command's `main`; errors that a user can mend become one line."""
    module = importlib.import_module(COMMANDS[command][0])
    expected, usage = _errors()
    try:
        code = module.main(arguments)
        sys.stdout.flush()
    except usage as error:
        print(f"timebeam {command}: {error}\n(see `timebeam {command} --help`)", file=sys.stderr)
        return 2
    except BrokenPipeError:
        raise
    except expected as error:
        print(f"timebeam {command}: {error}", file=sys.stderr)
        return 1
    assert isinstance(code, int)
    return code


def _errors() -> tuple[tuple[type[Exception], ...], type[Exception]]:
    """(errors that are failures, the error of wrong usage)."""
    from google.api_core.exceptions import GoogleAPICallError

    from pipelines.local.emulator import EmulatorError
    from pipelines.local.subscription import SubscriptionError
    from pipelines.parameters import UsageError
    from transforms.bigtable.target import BigtableError

    return (BigtableError, EmulatorError, SubscriptionError, GoogleAPICallError, OSError), UsageError


def _help() -> str:
    lines = [f"  {name:10} {what}" for name, (_, what) in COMMANDS.items()]
    return (
        "usage: timebeam COMMAND [options]\n\n"
        "Metric time series into Bigtable, in the layouts of real systems, and back.\n\n"
        "commands:\n" + "\n".join(lines) + "\n\n`timebeam COMMAND --help` explains a command, with examples."
    )


if __name__ == "__main__":
    sys.exit(main())
