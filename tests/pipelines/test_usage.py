"""What is wrong before any work is one line with exit code 2, and what came of rejections an exit code."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tests.support.commands import Ran, timebeam
from tests.support.points import put_file, random_points, write_file
from tests.support.stored import Store
from timebeam.pipelines.local.emulator import HOST_VARIABLE
from timebeam.pipelines.local.pubsub import PUBSUB_VARIABLE

TEXT = ("--format=opentsdb-text", "--auto-create-metrics")


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix)


def rejected_usage(*arguments: str | Path) -> str:
    """The one line of a command that is wrong usage."""
    ran = timebeam(*arguments)
    assert ran.code == 2, ran
    assert ran.out == ""
    line, see = ran.err.splitlines()
    assert see.startswith("(see `timebeam")
    return line


def ingest(store: Store, *arguments: str | Path) -> Ran:
    return timebeam("ingest", *store.flags, *TEXT, *arguments)


def test_the_version() -> None:
    assert timebeam("--version").out.startswith("timebeam 0.")


@pytest.mark.parametrize(("word", "meant"), [("igest", "ingest"), ("qurey", "query"), ("table", "tables")])
def test_a_misspelt_command(word: str, meant: str) -> None:
    assert rejected_usage(word) == f"timebeam: unknown command {word!r}: did you mean {meant}?"


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [("--layuot=opentsdb", "--layout"), ("--runer=x", "--runner"), ("--temp_loc=x", "--temp_location")],
)
def test_a_misspelt_option_required_or_of_beam(misspelt: str, meant: str) -> None:
    layout = [] if meant == "--layout" else ["--layout=opentsdb"]
    line = rejected_usage("ingest", *layout, *TEXT, "--input=x", misspelt)
    name = misspelt.partition("=")[0]
    assert line == f"timebeam ingest: unknown option {name}: did you mean {meant}?"


def test_a_misspelt_option_beside_a_missing_one() -> None:
    line = rejected_usage("ingest", "--layuot=opentsdb", "--input=x")
    assert line == "timebeam ingest: unknown option --layuot: did you mean --layout?"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["--layout=opentsbd", "--format=influx"], "; did you mean opentsdb?"),
        (["--layout=opentsdb", "--format=inflxu"], "; did you mean influx?"),
        (["--layout=opentsdb", "--format=influx", "--packing=appned"], "did you mean append?"),
    ],
)
def test_a_misspelt_choice(given: list[str], meant: str) -> None:
    line = rejected_usage("ingest", *given, "--input=x")
    assert meant in line
    assert "(choose from " in line


def test_a_choice_that_is_like_no_other() -> None:
    assert "did you mean" not in rejected_usage("ingest", "--layout=zzz", "--format=influx", "--input=x")


def test_an_option_of_beam_that_is_given_twice(store: Store) -> None:
    assert "--region is given twice" in rejected_usage(
        "ingest", *store.flags, *TEXT, "--input=x", "--region=a", "--region=b"
    )


def test_all_files_of_a_repeated_option_are_read(store: Store, tmp_path: Path) -> None:
    points = random_points(30)
    first, second = put_file(tmp_path / "a.txt", points[:10]), put_file(tmp_path / "b.txt", points[10:])
    ran = ingest(store, "--input", first, "--input", second, "--summary=json")
    assert ran.code == 0, ran.err
    assert '"points_read": 30' in ran.out


def test_dataflow_that_is_not_told_all(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("ingest", *store.flags, *TEXT, "--input=x", "--runner=DataflowRunner")
    assert "BIGTABLE_EMULATOR_HOST is set" in rejected_usage(*flags)
    monkeypatch.delenv(HOST_VARIABLE)
    monkeypatch.setenv("CLOUDSDK_CONFIG", "/nonexistent")
    line = rejected_usage(*flags)
    assert "region" in line
    assert "temp_location" in line
    assert "--setup_file ./none.py does not exist" in rejected_usage(*flags, "--setup_file=./none.py")


@pytest.mark.parametrize("place", ["/proc/nope/x", "file/x"])
def test_dead_letters_that_cannot_be_written(store: Store, tmp_path: Path, place: str) -> None:
    file = put_file(tmp_path / "file", random_points(5))
    line = rejected_usage("ingest", *store.flags, *TEXT, "--input", file, "--dead-letters", tmp_path / place)
    assert "cannot create files there" in line
    assert store.cells() == set()


def test_a_look_at_the_dead_letters_leaves_nothing(store: Store, tmp_path: Path) -> None:
    file = put_file(tmp_path / "a.txt", random_points(5))
    assert ingest(store, "--input", file, "--dead-letters", tmp_path / "new" / "folder" / "x").code == 0
    assert os.listdir(tmp_path) == ["a.txt"]


def test_buckets_without_credentials(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    line = rejected_usage("ingest", *store.flags, *TEXT, "--input", "gs://bucket/a.txt")
    assert "no Google Cloud credentials" in line


def test_a_port_that_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        line = rejected_usage("emulator", "--port", str(port))
    assert line.startswith(f"timebeam emulator: --port {port} is in use")


def test_an_address_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOST_VARIABLE, "foo")
    line = rejected_usage("check", "--layout=opentsdb")
    assert "BIGTABLE_EMULATOR_HOST=foo is not HOST:PORT: set it as" in line


@pytest.mark.parametrize("address", ["http://localhost:9999", "localhost:9999/", "grpc://localhost:9999/"])
def test_an_emulator_that_is_named_by_an_url(
    emulator: str, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    said = f"={address} is not HOST:PORT: did you mean localhost:9999?"
    monkeypatch.setenv(PUBSUB_VARIABLE, address)
    assert PUBSUB_VARIABLE + said in rejected_usage("generate", "--topic=projects/p/topics/t")
    monkeypatch.setenv(HOST_VARIABLE, address)
    assert HOST_VARIABLE + said in rejected_usage("check", "--layout=opentsdb")


@pytest.mark.parametrize(
    "arguments",
    [
        ("layout", "check", "none.toml"),
        ("tables", "create", "--layout=table", "--tables=none.toml"),
        ("ingest", "--layout=table", "--tables=none.toml", "--format=records", "--input=x"),
        ("rollup", "--layout=table", "--tables=none.toml"),
    ],
)
def test_a_declaration_that_is_missing(arguments: tuple[str, ...], emulator: str) -> None:
    assert "cannot read the declaration of tables none.toml" in rejected_usage(*arguments)


@pytest.mark.parametrize(
    ("limit", "code"), [("1", 1), ("2", 0), ("19.9%", 1), ("20%", 0), ("0", 1), ("100%", 0)]
)
def test_more_rejections_than_allowed(store: Store, tmp_path: Path, limit: str, code: int) -> None:
    lines = [b"put bad\n", b"put worse\n"]
    lines += [b"put m %d 1 h=a\n" % (1795250200 + second) for second in range(8)]
    file = write_file(tmp_path / "a.txt", lines)
    ran = ingest(store, "--input", file, "--dead-letters", tmp_path / "d", "--max-rejected", limit)
    assert ran.code == code
    assert "points stored              8" in ran.out
    said = f"rejected 2 of 10, more than --max-rejected {limit}: see the dead letters\n"
    assert ran.err == (said if code else "")


@pytest.mark.parametrize("limit", ["-1", "1.5", "101%", "%", "nan%", ""])
def test_limits_that_are_none(store: Store, limit: str) -> None:
    line = rejected_usage("ingest", *store.flags, *TEXT, "--input=x", f"--max-rejected={limit}")
    assert "--max-rejected" in line
