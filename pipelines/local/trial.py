"""Batches of a stream in processes of their own, so that what ends such a process does not end the stream.

A file names the messages that a stream works on (`UnderWay`): what was under way when a process died is
suspect.

A server, this module as a program, is started once and forks for each batch: it has no threads, and has
imported what takes seconds. Requests and answers go through its standard input and output, pickled.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from timebeam.schema.formats import Message
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.steps import register_coders

_LOGGER = logging.getLogger(__name__)


class UnderWay:
    """The note of one process. It is removed when the process ends in any way but a crash or a kill.

    Attributes:
      suspects: ids of messages that dead processes of the same stream were working on.
    """

    def __init__(self, stream: Iterable[str], folder: Path | None = None) -> None:
        """Reads, and takes over, the notes of dead processes.

        Args:
          stream: what tells this stream from others on this machine.
          folder: for the notes; by default `timebeam` in the user's folder for state.
        """
        digest = hashlib.sha256(json.dumps(list(stream)).encode()).hexdigest()[:16]
        self._folder = folder or _state_folder()
        self._path = self._folder / f"under-way-{digest}-{os.getpid()}.json"
        self.suspects: set[str] = set()
        for path in sorted(self._folder.glob(f"under-way-{digest}-*.json")):
            pid = path.stem.rpartition("-")[2]
            if path == self._path or not _is_alive(pid):
                with contextlib.suppress(OSError, ValueError):
                    self.suspects |= {str(number) for number in json.loads(path.read_text("utf-8"))}
                    path.unlink()
        self._note(())

    def split(self, messages: Sequence[Message]) -> tuple[list[Message], Sequence[Message]]:
        """(those that are suspect, the others)."""
        if not self.suspects:
            return [], messages
        suspect = [message for message in messages if _id(message) in self.suspects]
        return suspect, [message for message in messages if _id(message) not in self.suspects]

    @contextlib.contextmanager
    def noting(self, messages: Sequence[Message]) -> Iterator[None]:
        """Notes messages as under way; when they are done, they are not suspect any more."""
        self._note(messages)
        try:
            yield
            self.suspects.difference_update(map(_id, messages))
        finally:
            self._note(())

    def close(self) -> None:
        """Removes the note."""
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _note(self, messages: Sequence[Message]) -> None:
        ids = [*self.suspects, *map(_id, messages)]
        if not ids:
            self.close()
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            new = self._path.with_suffix(".part")
            new.write_text(json.dumps(ids), "utf-8")
            new.replace(self._path)
        except OSError as error:
            _LOGGER.warning(
                "cannot write the state of the stream, set XDG_STATE_HOME to a writable folder: %s", error
            )


def _id(message: Message) -> str:
    return message.envelope.message_id if message.envelope else ""


def _state_folder() -> Path:
    """Where a program keeps what outlives it."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "timebeam"


def _is_alive(pid: str) -> bool:
    """Whether a process of this machine runs."""
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        return True  # another user's process has this id
    return True


_CRASHES = {"SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGSYS", "SIGTRAP", "SIGKILL"}
"""The last one since the system ends so a process that takes too much memory."""


class CrashedError(ChildProcessError):
    """Some messages ended the process that worked on them."""


class Trial:
    """Runs a graph over batches of messages, each in a process of its own.

    Args:
      graph: a pipeline as Beam's protobuf.
      source: the number of its `TakeBatch`.
    """

    def __init__(self, graph: Any, options: PipelineOptions, source: int) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the parent
        )
        self._send((graph.SerializeToString(), options, source))

    def __enter__(self) -> Trial:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._server.stdin.close()
        self._server.wait()

    def run(self, messages: Sequence[Message]) -> collections.Counter[str] | None:
        """Stores messages; what was counted, None if that failed with an error.

        Raises:
          CrashedError: the process was ended by a signal.
        """
        assert self._server.stdout is not None
        self._send(list(messages))
        code, counted = pickle.load(self._server.stdout)
        name = signal.Signals(-code).name if code < 0 else ""
        if name in _CRASHES:
            raise CrashedError(f"{name}: it crashed two processes")
        return None if code else pickle.loads(counted)

    def _send(self, request: object) -> None:
        assert self._server.stdin is not None
        pickle.dump(request, self._server.stdin)
        self._server.stdin.flush()


def main() -> None:
    """The server: until its input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints
    requests = sys.stdin.buffer
    raw, options, source = pickle.load(requests)
    register_coders()
    graph = beam_runner_api_pb2.Pipeline.FromString(raw)
    while True:
        try:
            messages = pickle.load(requests)
        except EOFError:
            return
        pickle.dump(_forked(graph, options, source, messages), answers)
        answers.flush()


def _forked(
    graph: Any, options: PipelineOptions, source: int, messages: Sequence[Message]
) -> tuple[int, bytes]:
    """(exit code, what was counted, pickled) of a process that runs a graph over messages."""
    from timebeam.pipelines.local.micro_batches import handed_over  # which imports this module

    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # its errors come again in the process of the stream
            handed_over[source] = messages
            FnApiRunner().run_via_runner_api(graph, options).wait_until_finish()
            with os.fdopen(writing, "wb") as file:
                pickle.dump(metrics.totals, file)
            os._exit(0)
        except BaseException:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        counted = file.read()
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), counted


if __name__ == "__main__":
    main()
