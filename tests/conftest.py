"""What all tests share: a Bigtable emulator, quick pipelines, markers, a Hypothesis profile.

Tests share one emulator per pytest (or pytest-xdist worker) process and keep apart by table names.

A test that uses the fixture `emulator`, starts other processes or runs Beam pipelines has the marker
`emulator`. Tests marked `long` run only if `-m` names the marker: `make test-long` does; those marked
`clients` and `engines` likewise, by `make test-clients` and `make test-engines`.
"""

from __future__ import annotations

import gc
import itertools
import os
import secrets
import signal
from collections.abc import Iterator
from typing import NamedTuple

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # read at import: else each server that goes is a line
os.environ |= {"COLUMNS": "80", "LINES": "24", "LANGUAGE": "C"}  # each parser of options asks for them often
os.environ["GOGC"] = "400"  # saves the emulators processor time
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a script's background job, whose children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

import hypothesis
import pytest

from tests.support.budget import EXAMPLES
from tests.support.house import time_limit
from tests.support.house.quick_graphs import quick_graphs
from tests.support.house.starts import starts_processes
from timebeam.pipelines.local.emulator import HOST_VARIABLE, Emulator

_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")
_TESTS = itertools.count(1)

# The same examples on every run and machine, so that a failure is a failure for everybody.
hypothesis.settings.register_profile("long", derandomize=True, deadline=None, max_examples=EXAMPLES)
hypothesis.settings.register_profile(
    "short", parent=hypothesis.settings.get_profile("long"), max_examples=EXAMPLES // 4
)


def pytest_configure(config: pytest.Config) -> None:
    """Sets the limit of time, and Hypothesis' examples: all if `-m` names the long tests, else a quarter."""
    config.pluginmanager.register(time_limit, time_limit.__name__)
    hypothesis.settings.load_profile("long" if "long" in config.option.markexpr else "short")
    # A shell starts what is in the background without it, and so would be the processes that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the tests that use an emulator or processes; deselects those that run only if `-m` names them."""
    for item in items:
        if "emulator" in getattr(item, "fixturenames", ()) or starts_processes(item):
            item.add_marker("emulator")
    for marker in ("long", "clients", "engines"):
        if marker not in config.option.markexpr:
            config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker(marker)])
            items[:] = [item for item in items if not item.get_closest_marker(marker)]


def pytest_collection_finish() -> None:
    """Modules and tests stay: the collector of garbage need not look at them again and again."""
    gc.collect()
    gc.freeze()


class Bigtable(NamedTuple):
    """Where a test keeps its tables."""

    project: str
    instance: str


@pytest.fixture(scope="session", autouse=True)
def _state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a stream notes for the time after its death stays out of the user's folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _quick_graphs() -> Iterator[None]:
    """Hundreds of tests run pipelines of a few elements each. None reports progress, however busy it is."""
    with quick_graphs(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("timebeam.pipelines.output.progress_and_summary._LINES_SECONDS", 3600)
        yield


@pytest.fixture(scope="session")
def emulator() -> Iterator[str]:
    """localhost:PORT of the emulator that BIGTABLE_EMULATOR_HOST names, or of one started here.

    The variable is set for the rest of the session.
    """
    host = os.environ.get(HOST_VARIABLE)
    if host:
        yield host
        return
    time_limit.stop()  # to build it takes minutes, and has a limit of its own
    with Emulator() as child, child.environment():
        yield child.host


@pytest.fixture(scope="session")
def bigtable(emulator: str) -> Bigtable:
    """An instance of the emulator that no other session or worker uses."""
    return Bigtable("local", f"local-{_WORKER}-{secrets.token_hex(4)}")


@pytest.fixture
def prefix() -> str:
    """The start of the names of a test's tables; no other test has the same."""
    return f"t{next(_TESTS)}_{_WORKER}_"
