"""The packages of examples/, installed by pip: a format and a store in commands, workers and the server."""

from __future__ import annotations

import contextlib
import gzip
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import apache_beam as beam
import httpx
import pytest
from apache_beam.testing.util import assert_that, equal_to

import timebeam as tb
from tests.schema.stores.plain_opentsdb import number
from tests.support.commands import ingest, timebeam
from tests.support.points import stored
from tests.support.pubsub_server import SUBSCRIPTION, TOPIC, Published, PubSubServer
from tests.support.servers.programs import free_port
from tests.support.stored import Store
from timebeam import io as tb_io
from timebeam.pipelines.jobs.runners import LOCAL_RUNNER, unstaged_packages
from timebeam.schema.core.plugins import find_plugin
from timebeam.testing import check_format, check_store
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.read.table_reader import scan_table

ROOT = Path(__file__).parents[2]
PACKAGES = ("firm_json", "firm_hours")
TWO = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages, as pip installs them."""
    folder = tmp_path_factory.mktemp("packages")
    for name in PACKAGES:
        shutil.copytree(ROOT / "examples" / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index")
    options = ("--no-deps", "--no-build-isolation", "--target", str(folder / "site"))
    subprocess.run([*pip, *options, *(str(folder / name) for name in PACKAGES)], check=True)
    return folder / "site"


@pytest.fixture(autouse=True)
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Installs the packages, here and in processes that the test starts."""
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", str(site))
    find_plugin.cache_clear()
    yield
    find_plugin.cache_clear()
    for name in PACKAGES:
        sys.modules.pop(name, None)


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix)


HOUR_MS = 1_795_687_200_000
"""2026-11-26T10:00Z."""


def message(minute: int, **readings: object) -> str:
    at = f"2026-11-26T10:{minute:02}:00.250Z"
    return json.dumps({"site": "lga", "device": f"pump-{minute % 3}", "at": at, "readings": readings})


GOOD = message(1, bar=3.25, rpm=900, off=None).encode()
SAMPLES = [GOOD, message(1, on=True, bar=1).encode(), b'{"site":"a"}\n[]\n{"device":1}']


def files(folder: Path) -> Path:
    """Three files of 20 messages; each has one that is rejected."""
    folder = folder / "input"
    folder.mkdir()
    for part in range(3):
        lines = [message(minute, bar=minute / 4, rpm=minute) for minute in range(20 * part, 20 * part + 20)]
        path = folder / f"{part}.jsonl"
        path.write_text("\n".join([*lines, message(0, bar="high")]) + "\n")
    return folder / "*.jsonl"


def expected(prefix: str, whole: type[int] | type[float] = int) -> dict[object, object]:
    """The points of these files, as `stored` gives them."""
    return {
        (
            (prefix + name, (("device", f"pump-{minute % 3}"), ("site", "lga"))),
            HOUR_MS + 60_000 * minute + 250,
        ): number(minute / 4 if name == "bar" else whole(minute))
        for minute in range(60)
        for name in ("bar", "rpm")
    }


def test_the_example_of_a_format_is_short_and_keeps_the_rules() -> None:
    assert len((ROOT / "examples/firm_json/firm_json.py").read_text().splitlines()) <= 60
    check_format("firm-json", SAMPLES)
    check_format("firm-json", [GOOD], {"firm_json_prefix": "a."}, rounds=20)


def test_the_example_of_a_store_is_short_and_keeps_the_rules() -> None:
    assert len((ROOT / "examples/firm_hours/firm_hours.py").read_text().splitlines()) <= 150
    check_store("firm-hours", rounds=20)
    check_store("firm-hours", {"firm_hours_separator": "|", "table_prefix": "t-"}, rounds=20)


def test_parse_takes_the_format() -> None:
    parsed = tb.parse("firm-json", message(0, bar=3.25, on=True).encode(), firm_json_prefix="a.")
    assert [str(series) for series in parsed.points.series] == ["a.bar{device=pump-0,site=lga}"]
    assert [rejected.reason.value for rejected in parsed.rejected] == ["bad-number"]


@pytest.mark.parametrize("processes", [(), TWO], ids=["one", "two"])
def test_ingest(store: Store, tmp_path: Path, processes: tuple[str, ...]) -> None:
    flags = ("--format=firm-json", "--firm-json-prefix=a.", "--auto-create-metrics", *processes)
    found = ingest(tmp_path, *store.flags, *flags, "--input", files(tmp_path))
    assert stored(store) == expected("a.")
    assert (found.summary["points_stored"], found.summary["rejected"]) == (120, {"bad-number": 3})
    assert {letter["payload"] for letter in found.letters} == {message(0, bar="high")}


def test_wrong_usage(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = (*store.flags, "--input", str(files(tmp_path)))
    ran = timebeam("ingest", *flags, "--format=firm-json", "--firm-json-prefx=a.")
    assert (ran.code, ran.err.splitlines()[0]) == (
        2,
        "timebeam ingest: unknown option --firm-json-prefx: did you mean --firm-json-prefix?",
    )
    ran = timebeam("ingest", *flags, "--format=influx", "--firm-json-prefix=a.")
    assert (ran.code, "unknown option --firm-json-prefix" in ran.err) == (2, True)
    ran = timebeam("ingest", *flags, "--format=firm-jsno")
    assert (ran.code, "invalid choice: 'firm-jsno'" in ran.err) == (2, True)
    monkeypatch.setenv("TIMEBEAM_FORMAT", "firm-json")
    ran = timebeam("ingest", *flags, "--auto-create-metrics", "--dry-run", "--firm-json-prefix=a.")
    assert (ran.code, "120" in ran.out) == (0, True), ran.err


def test_a_store_of_a_package(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    where = [f"--project={bigtable[0]}", f"--instance={bigtable[1]}", f"--table-prefix={prefix}"]
    flags = [*where, "--layout=firm-hours", "--firm-hours-separator=|"]
    missing = timebeam("ingest", *flags, "--format=firm-json", f"--input={files(tmp_path)}")
    assert missing.code == 1
    assert f"timebeam tables create --layout firm-hours --table-prefix {prefix}" in missing.err
    created = timebeam("tables", "create", *flags)
    assert created.code == 0, created.err
    assert "firm_hours_separator |, package firm-hours 1.0.0" in created.out
    stored_at = [*where, "--format=firm-json", f"--input={tmp_path}/input/*.jsonl"]
    found = ingest(tmp_path, *stored_at)  # the layout and its option are those of the tables
    assert found.summary["points_stored"] == 120
    assert ingest(tmp_path, *stored_at, *TWO).summary["points_stored"] == 120
    asked = timebeam(
        *("query", "plant.bar", *where, f"--start={HOUR_MS}", f"--end={HOUR_MS + 3_600_000}"),
        *("--aggregator=sum", "--downsample=1h-sum", "--output=json"),
    )
    assert asked.code == 0, asked.err
    (answer,) = json.loads(asked.out)
    assert list(answer["dps"].values()) == [sum(minute / 4 for minute in range(60))]
    by_name = tb.open(*bigtable, store="firm-hours", table_prefix=prefix, firm_hours_separator="|")
    by_store = tb.open(*bigtable, store=by_name.store)
    for database in (by_name, by_store, tb.open(*bigtable, table_prefix=prefix)):
        points = database.query("plant.bar", start=HOUR_MS, end=HOUR_MS + 3_600_000)
        assert sum(points.to_arrow()["value"].to_pylist()) == sum(answer["dps"].values())
    checked = timebeam("check", *where)
    assert checked.code == 0, checked.out + checked.err
    (keys,) = {row.key.count(b"|") for row in scan_table(Target(*bigtable), f"{prefix}hours")}
    assert keys == 2


def test_a_copy_from_and_to_a_store_of_a_package(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, store: Store
) -> None:
    where = [f"--project={bigtable[0]}", f"--instance={bigtable[1]}"]
    ingest(tmp_path, *store.flags, "--format=firm-json", "--auto-create-metrics", "--input", files(tmp_path))
    start = ["--start=2026-11-01", "--end=2026-12-01"]
    assert timebeam("tables", "create", *where, f"--table-prefix={prefix}f-", "--layout=firm-hours").code == 0
    ran = timebeam(
        *("copy", "--from=opentsdb", "--to=firm-hours", *where, *start),
        *(f"--table-prefix={prefix}", f"--to-table-prefix={prefix}f-"),
    )
    assert ran.code == 0, ran.err + ran.out
    other = Store.create(bigtable, f"{prefix}o-")
    ran = timebeam(
        *("copy", "--from=firm-hours", "--to=opentsdb", *where, *start, "--auto-create-metrics"),
        *(f"--table-prefix={prefix}f-", f"--to-table-prefix={prefix}o-"),
    )
    assert ran.code == 0, ran.err + ran.out
    assert stored(other) == expected("plant.", float)


def test_other_commands_say_what_a_store_of_a_package_has_not(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    flags = [f"--project={bigtable[0]}", f"--instance={bigtable[1]}", f"--table-prefix={prefix}"]
    assert timebeam("tables", "create", *flags, "--layout=firm-hours").code == 0
    for layout in ([], ["--layout=firm-hours"]):
        for command in (
            ["compact"],
            ["delete", "m"],
            ["series", "*"],
            ["export", "--output=x", "--day=2026-11-01"],
        ):
            ran = timebeam(command[0], *command[1:], *flags, *layout)
            assert ran.code == 2, ran.out
            assert f"timebeam {command[0]}: store firm-hours has no {command[0]}: stores of other" in ran.err
    contradiction = timebeam("check", *flags, "--firm-hours-separator=|", "--layout=firm-hours")
    assert (contradiction.code, "says that layout firm-hours has # here" in contradiction.err) == (2, True)


def test_the_package_of_the_tables_must_be_the_one_that_is_installed(
    bigtable: tuple[str, str], prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = [f"--project={bigtable[0]}", f"--instance={bigtable[1]}", f"--table-prefix={prefix}"]
    assert timebeam("tables", "create", *flags, "--layout=firm-hours").code == 0
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not path.endswith("/site")])
    find_plugin.cache_clear()
    ran = timebeam("check", *flags)
    assert ran.code == 2
    assert f"store firm-hours of package firm-hours 1.0.0 (table {prefix}timebeam)" in ran.err


def served(port: int, process: subprocess.Popen[bytes]) -> httpx.Client:
    """A client of a server, once it answers."""
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20)
    for _ in range(600):
        assert process.poll() is None
        with contextlib.suppress(httpx.TransportError):
            client.get("/healthz")
            return client
        time.sleep(0.1)
    raise AssertionError("the server does not answer")


@pytest.mark.parametrize("workers", [1, 2])
def test_serve_and_a_stream(store: Store, tmp_path: Path, workers: int) -> None:
    port, both = free_port(), "--formats=firm-json"
    words = ("serve", "--write-only", f"--topic={TOPIC}", f"--port={port}", f"--workers={workers}", both)
    command = (sys.executable, "-m", "timebeam", *words, "--firm-json-prefix=a.")
    with PubSubServer(delivers=True).running() as pubsub:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
        try:
            client = served(port, process)
            for minute in range(60):
                body = message(minute, bar=minute / 4, rpm=minute)
                headers = {"Content-Encoding": "gzip"} if minute % 2 else {}
                content = gzip.compress(body.encode()) if minute % 2 else body.encode()
                assert client.post("/write/firm-json", content=content, headers=headers).status_code == 204
            wrong = client.post("/write/firm-json", content=message(0, bar="high"))
            assert (wrong.status_code, "is not a number" in wrong.text) == (400, True)
            page = {"Origin": "http://elsewhere.example"}
            assert client.post("/write/firm-json", content=message(0, bar=1), headers=page).status_code == 403
            assert client.post("/write/avro", content=b"x").status_code == 404
        finally:
            process.terminate()
            process.wait(60)
        assert {each.attributes["format"] for each in pubsub.published} == {"firm-json"}
        assert len(pubsub.published) == 60
        found = ingest(
            tmp_path,
            *(*store.flags, "--format=influx", both, "--firm-json-prefix=a.", "--auto-create-metrics"),
            *(f"--input-subscription={SUBSCRIPTION}", "--stop-when-idle=0.5"),
        )
    assert (found.summary["points_stored"], found.summary["rejected"]) == (120, {})
    assert stored(store) == expected("a.")


def test_a_message_chooses_no_package(store: Store, tmp_path: Path) -> None:
    texts = [Published(message(0, bar=1).encode(), HOUR_MS, {"format": name}) for name in ("firm-json", "x")]
    with PubSubServer(texts).running():
        found = ingest(
            tmp_path,
            *(*store.flags, "--format=influx", "--auto-create-metrics"),
            *(f"--input-subscription={SUBSCRIPTION}", "--stop-when-idle=0.5"),
        )
    assert found.summary["rejected"] == {"unknown-format": 2}
    assert "firm_json" not in sys.modules


@pytest.mark.parametrize(
    ("more", "is_missing"),
    [
        ([], True),
        (["--extra_package=dist/other-1.0.0.tar.gz"], True),
        (["--extra_package=dist/firm_json-1.0.0.tar.gz"], False),
        (["--sdk_container_image=gcr.io/p/image"], False),
    ],
)
def test_workers_elsewhere_need_the_package(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], is_missing: bool
) -> None:
    flags = [*store.flags, f"--input={files(tmp_path)}", f"--dead-letters={tmp_path / 'd'}", *more]
    beam = ("--runner=DataflowRunner", "--region=europe-west1", "--setup_file=./setup.py")
    monkeypatch.chdir(ROOT)
    why = "workers do not get package firm-json: give its sdist or wheel, --extra_package FILE"
    ran = timebeam("ingest", *flags, *beam, "--format=firm-json", "--preflight")
    assert (why in ran.out) == is_missing, ran.out + ran.err
    ran = timebeam("ingest", *flags, *beam, "--format=influx", "--preflight")
    assert "workers do not get package" not in ran.out
    assert (unstaged_packages([*beam, *more], ["firm-json"]) != []) == is_missing


def test_parse_points() -> None:
    texts = [message(minute, bar=1).encode() for minute in range(3)] + [b"[]"]
    with beam.Pipeline(LOCAL_RUNNER) as pipeline:
        parse = tb_io.ParsePoints("firm-json", options={"firm_json_prefix": "a."})
        points, rejected = pipeline | beam.Create(texts) | parse
        names = points | beam.FlatMap(lambda batch: sorted({series.metric for series in batch.series}))
        assert_that(names | beam.Distinct(), equal_to(["a.bar"]), "points")
        assert_that(rejected | beam.Map(lambda each: each.payload), equal_to([b"[]"]), "rejected")


def test_help_lists_packages_and_shows_the_options_of_a_format() -> None:
    assert "firm-json" in timebeam("help", "format").out.split()
    ran = timebeam("help", "format", "firm-json")
    assert (ran.code, "Format:\n  --firm-json-prefix PREFIX" in ran.out) == (0, True), ran.out
    assert "--influx-precision" not in ran.out
