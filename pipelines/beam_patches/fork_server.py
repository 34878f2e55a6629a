"""Worker processes of Beam's local runner, forked from one process that has imported Beam.

    command ── requests, ends ──► fork server ── fork ──► worker 0, worker 1, …
       └──────────────── Beam's Fn API, by gRPC ─────────────┘

The imports take one and a half seconds of processor time: they run once for all workers, beside those of the
command. Server and workers are a process group of their own, so Ctrl-C reaches only the command, which ends
them all at once. If the command dies, its pipe is closed, and they end too.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType

_PROGRAM = "from timebeam.pipelines.beam_patches.fork_server import serve; serve()"
_DATA_PLANE = logging.getLogger("apache_beam.runners.worker.data_plane")
_END_SECONDS = 10
"""Time for a worker to end after its last bundle."""

DEATH = "a worker process died (out of memory?); run the command again to complete the work"
"""What a user is told if a process of the run was killed."""


class ForkServer:
    """The fork server of this process.

    Attributes:
      lost: whether a worker has failed or was killed.
    """

    def __init__(self) -> None:
        self.lost = False
        self._ended: list[threading.Event] = []
        self._on_loss: list[Callable[[], None]] = []
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read_ends, daemon=True)
        self._reader.start()
        _DATA_PLANE.addFilter(self._is_heard)

    def fork(self, environment: Mapping[str, str], on_loss: Callable[[], None]) -> int:
        """Starts a worker of Beam's SDK; returns its number.

        Args:
          environment: variables for the worker, added to those of this process.
          on_loss: called in another thread if the worker ends with an error.

        Raises:
          ChildProcessError: the server has died.
        """
        self._on_loss.append(on_loss)
        self._ended.append(threading.Event())
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({**os.environ, **environment}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:  # to the command, this would mean that the reader of its output has gone
            self.lost = True
            self._ended[-1].set()
            raise ChildProcessError(DEATH) from None
        return len(self._ended) - 1

    def wait(self, number: int) -> None:
        """Waits until a worker that was told to end has done so."""
        self._ended[number].wait(_END_SECONDS)

    def kill(self) -> None:
        """Ends the server and all workers."""
        self.lost = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Ends the server and all workers, and waits for the server."""
        self.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        _DATA_PLANE.removeFilter(self._is_heard)

    def _is_heard(self, _: logging.LogRecord) -> bool:
        """Whether an error of a connection is logged: not if its worker is lost."""
        return not self.lost

    def _read_ends(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            number, failed = map(int, line.split())
            self._ended[number].set()
            if failed:
                self._lose(number)
        for number, ended in enumerate(self._ended):  # the server is gone, and its workers with it
            if not ended.is_set():
                ended.set()
                self._lose(number)

    def _lose(self, number: int) -> None:
        self.lost = True
        self._on_loss[number]()


_running: ForkServer | None = None


@contextlib.contextmanager
def running() -> Iterator[ForkServer]:
    """A context with the fork server of this process; the outermost context starts and ends it."""
    global _running
    if _running is not None:
        yield _running
        return
    _running = ForkServer()
    try:
        yield _running
    finally:
        server, _running = _running, None
        server.close()


def stop_signals() -> list[signal.Signals]:
    """Ctrl-C and SIGTERM, except those that this process ignores, as a script's background jobs do."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


@contextlib.contextmanager
def stoppable(server: ForkServer) -> Iterator[None]:
    """A context in which Ctrl-C and SIGTERM end all workers and raise KeyboardInterrupt.

    Threads that talk to a lost worker end without a stack on standard error.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        server.kill()
        raise KeyboardInterrupt

    def report(failure: threading.ExceptHookArgs) -> None:
        if not server.lost:
            report_before(failure)

    is_main = threading.current_thread() is threading.main_thread()
    handlers_before = {number: signal.signal(number, stop) for number in stop_signals() if is_main}
    report_before, threading.excepthook = threading.excepthook, report
    try:
        yield
    finally:
        threading.excepthook = report_before
        for number, handler in handlers_before.items():
            signal.signal(number, handler)


def serve() -> None:
    """The program of the server: forks a worker for each line of standard input.

    Standard output tells which worker has ended, and whether it failed.
    """
    from timebeam.pipelines.beam_patches import import_beam

    import_beam()
    shown = logging.StreamHandler()
    shown.setLevel(logging.WARNING)  # Beam gives the root logger a level of its own
    logging.basicConfig(format="%(levelname)s: %(message)s", handlers=[shown])
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)  # the runner gets the errors of bundles
    from apache_beam.runners.worker import sdk_worker, sdk_worker_main

    vars(sdk_worker)["print"] = lambda *_, **__: None  # it prints the stacks of these errors too

    for number in itertools.count():
        line = sys.stdin.buffer.readline()
        if not line:
            break
        pid = os.fork()
        if pid == 0:
            _work(json.loads(line), lambda: sdk_worker_main.main([]))
        # Not a handler of SIGCHLD: for a signal just before `readline`, Python would call it only after that.
        threading.Thread(target=_report_end, args=(number, pid)).start()
    os.killpg(0, signal.SIGKILL)


def _report_end(number: int, pid: int) -> None:
    """Writes that a worker has ended, when it has."""
    failed = os.waitpid(pid, 0)[1] != 0
    os.write(1, b"%d %d\n" % (number, failed))


def _work(environment: Mapping[str, str], main: Callable[[], None]) -> None:
    """Runs a worker in the forked process, to its end."""
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        os.environ.update(environment)
        main()
        code = 0
    finally:
        os._exit(code)
