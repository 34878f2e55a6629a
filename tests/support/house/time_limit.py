"""A plugin of pytest: a test that hangs fails, and one that cannot be interrupted ends its process.

Setup, call and teardown of a test have the limit each. It is `TEST_SECONDS`, or 5 minutes, and 30 for tests
marked `long`, `clients` or `engines`. When it is over, an alarm raises in the test, and the next one runs. If
that does not end it (the main thread waits in C, or blocks the signal, or runs no tests), `faulthandler`
prints the stacks of all threads and exits; pytest-xdist calls the test failed and goes on in a new process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading
from collections.abc import Generator, Iterator

import pytest

_SECONDS, _LONG_SECONDS = 300.0, 1800.0
_GRACE_SECONDS = 30.0
"""From the alarm to the exit: what fixtures need to end their processes."""
_STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Keeps standard error as it is before a test's output is captured."""
    config.stash[_STDERR] = os.dup(2)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Closes it."""
    os.close(config.stash[_STDERR])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """The fixtures of a test."""
    with _limit(item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """The test itself."""
    with _limit(item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """The ends of its fixtures."""
    with _limit(item):
        return (yield)


def pytest_enter_pdb() -> None:
    """A person at a debugger has no limit."""
    stop()


def stop() -> None:
    """Ends the limit of what runs now."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def _limit(item: pytest.Item) -> Iterator[None]:
    """Ends the block, or the process, when the limit of a test is over."""
    is_long = any(item.get_closest_marker(name) for name in ("long", "clients", "engines"))
    seconds = float(os.environ.get("TEST_SECONDS") or (_LONG_SECONDS if is_long else _SECONDS))
    stderr = item.config.stash[_STDERR]
    faulthandler.dump_traceback_later(seconds + min(seconds, _GRACE_SECONDS), exit=True, file=stderr)
    try:
        if threading.current_thread() is threading.main_thread():
            with _alarm(seconds):
                yield
        else:
            yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raises in the main thread after some seconds; for a block that runs there."""

    def over(*_: object) -> None:
        pytest.fail(f"still running after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
