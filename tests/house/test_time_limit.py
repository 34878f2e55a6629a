"""A test that hangs ends: in pytest, in processes of pytest-xdist, and where no alarm can interrupt it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HANGS = """
import signal, subprocess, sys, time
import pytest

@pytest.fixture
def endless():
    yield
    if {teardown!r}:
        time.sleep(60)

def test_first(endless):
    {hang}

def test_second():
    pass
"""
SLEEP = "time.sleep(60)"
FORGIVING = """
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass
"""
CHILD = "subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
BLOCKED = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM]); time.sleep(60)"
MAIN = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
IN_A_THREAD = """
import os, sys, threading, pytest
threading.Thread(target=lambda: os._exit(pytest.main(sys.argv[1:]))).start()
"""


def run(folder: Path, hang: str, *flags: str, teardown: bool = False, program: str = MAIN) -> tuple[int, str]:
    """(the exit code of pytest, its output)."""
    folder.joinpath("test_it.py").write_text(HANGS.format(hang=hang.strip(), teardown=teardown))
    plugins = ("-p", "xdist", "-p", "tests.support.house.time_limit")
    command = [sys.executable, "-c", program, "-q", *plugins, *flags, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TEST_SECONDS": "0.5"}
    for name in [name for name in environment if name.startswith("PYTEST_")]:
        del environment[name]
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # they take a second
    ran = subprocess.run(
        [*command, "-c", os.devnull, "--rootdir", str(folder)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    return ran.returncode, ran.stdout


@pytest.mark.parametrize(
    ("hang", "teardown", "flags"),
    [(SLEEP, False, ()), (CHILD, False, ()), ("pass", True, ()), (SLEEP, False, ("-n", "1"))],
    ids=["call", "child", "teardown", "xdist"],
)
def test_a_test_that_hangs_fails_and_the_next_one_runs(
    tmp_path: Path, hang: str, teardown: bool, flags: tuple[str, ...]
) -> None:
    code, output = run(tmp_path, hang, *flags, teardown=teardown)
    assert code == 1, output
    assert "still running after 0.5 s" in output
    assert re.search(r"1 passed" if not teardown else r"2 passed, 1 error", output), output


@pytest.mark.parametrize("hang", [FORGIVING, BLOCKED], ids=["forgiving", "blocked"])
def test_what_no_alarm_ends_ends_the_process(tmp_path: Path, hang: str) -> None:
    code, output = run(tmp_path, hang)
    assert code == 1, output
    assert "Timeout" in output
    assert "in test_first" in output


def test_the_others_run_in_a_new_process_of_xdist(tmp_path: Path) -> None:
    code, output = run(tmp_path, BLOCKED, "-n", "1")
    assert code == 1, output
    assert re.search("crashed while running 'test_it.py::test_first'", output), output
    assert "1 failed, 1 passed" in output


def test_a_thread_that_is_not_the_main_one_has_a_limit_too(tmp_path: Path) -> None:
    code, output = run(tmp_path, SLEEP, program=IN_A_THREAD)
    assert code == 1, output
    assert "in test_first" in output
    assert "still running" not in output


def test_what_has_a_limit_of_its_own_stops_it(tmp_path: Path) -> None:
    hang = "from tests.support.house import time_limit; time_limit.stop(); time.sleep(1.5)"
    code, output = run(tmp_path, hang)
    assert code == 0, output


def test_tests_of_this_project_have_it(request: pytest.FixtureRequest) -> None:
    assert request.config.pluginmanager.has_plugin("tests.support.house.time_limit")
