"""The console script `timebeam`: finds the command, and turns errors into one line and an exit code.

Exit codes: 0 done, 1 failed or corruption found, 2 wrong usage, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TextIO, cast

from timebeam.pipelines.beam_patches import import_beam
from timebeam.pipelines.commands import COMMANDS, call, find_command, named, options_from, places
from timebeam.pipelines.options.parsing import VERBOSITY, Verbosity, did_you_mean, one_line
from timebeam.pipelines.output.printable import PrintableStream

if TYPE_CHECKING:
    from timebeam.pipelines.options.command_line import Command

_VERBOSITIES = ("--quiet", "--verbose")
_EMULATOR_WARNING = "Connecting to Bigtable emulator"
_HEAP = {"MALLOC_TRIM_THRESHOLD_": (-1, 64 << 20), "MALLOC_MMAP_THRESHOLD_": (-3, 32 << 20)}
"""Settings of glibc in bytes: free memory that is kept, and the size of blocks that are mapped."""
_GC_OBJECTS = 50_000
"""New objects until the next search for cycles, in commands that read: rows and names have none."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if argv is None:  # a json.py in the current folder is not our module, in no process that this one starts
        os.environ["PYTHONSAFEPATH"] = "1"
    try:
        with (
            contextlib.redirect_stdout(cast(TextIO, PrintableStream(sys.stdout))),
            contextlib.redirect_stderr(cast(TextIO, PrintableStream(sys.stderr))),
        ):
            return _main(arguments)
    except BrokenPipeError:  # the reader of our output has gone: `timebeam query … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _main(arguments: list[str]) -> int:
    """The same, for a reader of the output that stays."""
    verbosity = _take_verbosity(arguments)
    if arguments[:2] == ["help", "format"]:
        return _print_format_help(arguments[2:])
    if arguments[:1] == ["help"] and arguments[1:]:
        arguments[:] = [arguments[1], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help(), flush=True)
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version", "version"):
        from importlib.metadata import version  # takes as long as half of a help

        print(f"timebeam {version('timebeam')}", flush=True)
        return 0
    command = arguments.pop(0)
    if command not in COMMANDS:
        unknown = f"unknown command {command!r}{did_you_mean(command, COMMANDS)}"
        print(f"timebeam: {one_line(unknown)}\n(see `timebeam --help`)", file=sys.stderr)
        return 2
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    if not os.environ.get("BIGTABLE_EMULATOR_HOST"):
        os.environ.pop("BIGTABLE_EMULATOR_HOST", None)  # set but empty, which the client takes for a host
    warnings.filterwarnings("ignore", _EMULATOR_WARNING, RuntimeWarning)
    # Of worker processes too.
    os.environ.setdefault("PYTHONWARNINGS", f"ignore:{_EMULATOR_WARNING}:RuntimeWarning")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # it warns of each failed attempt to connect
    try:
        return _run(command, arguments, verbosity)
    except KeyboardInterrupt:
        print(f"timebeam {command}: stopped; run it again to complete the work", file=sys.stderr)
        return 130


def _take_verbosity(arguments: list[str]) -> str:
    """Takes --quiet and --verbose out of the arguments; returns the last of them, or an empty string."""
    flags = [word for word in arguments if word in _VERBOSITIES]
    arguments[:] = [word for word in arguments if word not in _VERBOSITIES]
    return flags[-1] if flags else ""


def _run(command: str, arguments: list[str], verbosity: str) -> int:
    """Runs a command; errors that a user can fix become one line."""
    try:
        if "--no_auth" not in arguments:  # else the runner says whether credentials are used
            _check_buckets([*arguments, os.environ.get("TIMEBEAM_CONFIG", "")])
        with _verbosity(verbosity):
            code = _start(find_command(command), arguments)
        sys.stdout.flush()
    except (SystemExit, KeyboardInterrupt, BrokenPipeError):
        raise
    except _usage_error() as error:
        text = "\n".join(one_line(str(line)) for line in error.args)
        print(f"timebeam {command}: {text}\n(see `timebeam {command} --help`)", file=sys.stderr)
        return 2
    except _failures() as error:
        text = str(error) if isinstance(error, RuntimeError) else one_line(_text(error))
        print(f"timebeam {command}: {text}", file=sys.stderr)
        return 1
    return code


def _start(command: Command, arguments: Sequence[str]) -> int:
    """Parses the options, and imports what they start only then; returns the exit code."""
    options, rest = command.parse(arguments)
    starts_job, runner = command.starts_job(options), None
    _keep_heap()
    with contextlib.ExitStack() as stack:
        if starts_job:
            if any("multi_processing" in word for word in rest):  # workers import what this process does
                stack.enter_context(named("timebeam.pipelines.beam_patches.fork_server:running")())
            import_beam()
            from timebeam.pipelines.jobs.runners import Runner

            check = not getattr(options, "preflight", False)
            runner = Runner.of(command.parser(), rest, options.project, check=check)
        else:
            gc.set_threshold(_GC_OBJECTS)
        if runner is None or runner.uses_credentials:  # a profile names buckets too
            values = vars(options).values()
            _check_buckets(
                [text for value in values for text in (value if isinstance(value, list) else [value])]
            )
        opened = places(command, options)
        if runner is not None:
            from timebeam.pipelines.jobs.job import RunOptions
            from timebeam.pipelines.jobs.run import run_command

            job_of = functools.partial(call, named(command.job), options, runner=runner, **opened)
            packages = named("timebeam.pipelines.options.catalogue:plugin_packages")(vars(options))
            run_options = options_from(RunOptions, {**vars(options), "packages": packages})
            return run_command(job_of, run_options, runner, [*opened.values()][-1])
        return int(call(named(command.runs), options, **opened))


def _keep_heap() -> None:
    """Has the C library keep freed memory for the next columns, here and in processes that this one starts.

    Else the columns of each batch go back to the kernel, which clears the pages of the next: a fifth of the
    processor time of a query of a million points. A setting of the environment wins.
    """
    import ctypes

    if not _HEAP.keys().isdisjoint(os.environ):
        return
    os.environ.update({name: str(size) for name, (_, size) in _HEAP.items()})
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc has it
    if set_option is not None:
        for number, size in _HEAP.values():
            set_option(number, size)


@contextlib.contextmanager
def _verbosity(flag: str) -> Iterator[None]:
    """What a command says, as --quiet or --verbose asks for; with --verbose the stack of an error too."""
    chosen = {"--quiet": Verbosity.QUIET, "--verbose": Verbosity.VERBOSE}.get(flag, Verbosity.NORMAL)
    token = VERBOSITY.set(chosen)
    try:
        yield
    except Exception:
        if chosen is Verbosity.VERBOSE:
            traceback.print_exc()
        raise
    finally:
        VERBOSITY.reset(token)


def _check_buckets(texts: Iterable[object]) -> None:
    """See `check_buckets`, whose imports take half a second."""
    if any("gs://" in str(text) for text in texts):
        named("timebeam.pipelines.options.parsing:check_buckets")(texts)


def _usage_error() -> type[Exception]:
    from timebeam.pipelines.options.parameters import UsageError

    return UsageError


def _failures() -> tuple[type[Exception], ...]:
    """Errors that are failures. Asked for when there is an error: these imports take a second."""
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError
    from google.resumable_media import InvalidResponse

    from timebeam.pipelines.local.emulator import EmulatorError
    from timebeam.pipelines.local.pubsub import SubscriptionError
    from timebeam.schema.archive.archive_cell import CodecMissingError
    from timebeam.transforms.bigtable.target import BigtableError

    google = (GoogleAPIError, GoogleAuthError, InvalidResponse)
    return BigtableError, CodecMissingError, EmulatorError, SubscriptionError, *google, OSError


def _text(error: BaseException) -> str:
    """What an error says: for a rejected upload, its response. Beam raises it again without that."""
    from google.api_core.exceptions import from_http_response
    from google.resumable_media import InvalidResponse

    cause: BaseException | None = error if isinstance(error, InvalidResponse) else None
    while cause is not None:
        if isinstance(cause, InvalidResponse) and not isinstance(cause.response, str):
            return str(from_http_response(cause.response))
        cause = cause.__cause__ or cause.__context__
    return str(error)


def _print_format_help(names: Sequence[str]) -> int:
    """Prints the options of a format, or which formats there are; returns the exit code."""
    from timebeam.pipelines.options.help_text import format_help_text
    from timebeam.pipelines.options.parameters import UsageError

    try:
        print(format_help_text(names[0] if names else ""), flush=True)
    except UsageError as error:
        print(f"timebeam: {one_line(str(error))}\n(see `timebeam help format`)", file=sys.stderr)
        return 2
    return 0


def _help() -> str:
    lines = [f"  {name:10} {summary}" for name, summary in COMMANDS.items()]
    return (
        "usage: timebeam COMMAND [options]\n\n"
        "Stores metric time series in Bigtable, in the layouts of OpenTSDB, Heroic and KairosDB,\n"
        "and reads them back.\n\n"
        "commands:\n"
        + "\n".join(lines)
        + "\n\n`timebeam COMMAND --help` explains a command, with examples; `--help-all` shows all options.\n"
        "`timebeam help format NAME` shows the options of a message format.\n"
        "--quiet: no progress and no notes. --verbose: the settings in force, and the stack of an error."
    )


if __name__ == "__main__":
    sys.exit(main())
