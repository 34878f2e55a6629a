"""The classic template of the rollup: made without a day, run on one, with the cells of `timebeam rollup`."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.options.value_provider import RuntimeValueProvider, StaticValueProvider
from apache_beam.testing.test_pipeline import TestPipeline as Pipeline

from pipelines import rollup_classic
from pipelines.parameters import LAYOUT, UsageError
from pipelines.rollup_deferred import JOB, Launch, PeriodFn, RollupValues, build
from pipelines.run import LOCAL_RUNNER
from schema.points import Series
from tests.support.dataflow import read_job, service_flags
from tests.support.rolled import DAY, Points, config_file, interval, roll_up, send, with_tables
from tests.support.stored import Store
from transforms.bigtable.reader import scan_table
from transforms.bigtable.target import BigtableError

TABLES = ("rollup-1h", "rollup-1d", "preagg-1h")
POINTS: Points = {
    (Series.of("sys.cpu", {"host": f"web{host:02}", "dc": "ams"}), DAY + 60 * minute): host + minute / 8
    for host in range(5)
    for minute in range(0, 1440, 7)
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    groups = [{"metrics": ["sys.*"], "keepTags": ["dc"], "aggregators": ["sum"]}]
    return config_file(tmp_path, [interval("1h", "1n"), interval("1d", "1y")], groups)


@pytest.fixture
def salt_width() -> int:
    return 0


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str, config: Path, salt_width: int) -> Store:
    return with_tables(Store.create(bigtable, prefix, salt_width=salt_width, salt_buckets=3), config)


def built(store: Store) -> dict[str, Any]:
    """The options that the template has."""
    options = store.layout.options
    made = {one.name: one.default for one in LAYOUT} | {"layout": "opentsdb", "project": store.target.project}
    return made | {"salt_width": options.salt_width, "salt_buckets": options.salt_buckets}


def texts(store: Store, config: Path) -> dict[str, str]:
    """What a launch gives."""
    return {
        "instance": store.target.instance,
        "table_prefix": store.layout.options.table_prefix,
        "rollup_config": str(config),
        "dead_letters": str(config.parent / "letters"),
        "day": "2024-02-28",
    }


def rolled(store: Store) -> dict[str, Any]:
    """All cells of the rollup tables."""
    prefix = store.layout.options.table_prefix
    return {table: list(scan_table(store.target, prefix + table)) for table in TABLES}


@contextlib.contextmanager
def launched_with(values: dict[str, str]) -> Iterator[None]:
    """What a worker of Dataflow does first: the options of the job become those of all providers."""
    RuntimeValueProvider.set_runtime_options(values)
    with mock.patch.object(RuntimeValueProvider, "set_runtime_options"):
        yield
    RuntimeValueProvider.set_runtime_options(None)


def run(launch: Launch) -> None:
    with Pipeline(runner=LOCAL_RUNNER, blocking=True) as root:
        build(root, launch)


@pytest.mark.parametrize("salt_width", [0, 1])
def test_the_cells_are_those_of_the_command(store: Store, config: Path, tmp_path: Path) -> None:
    send(store, tmp_path, POINTS)
    values = PipelineOptions([]).view_as(RollupValues)
    launch = Launch(built(store), {one.name: getattr(values, one.name) for one in JOB.parameters})
    with launched_with(texts(store, config)):
        run(launch)
    found = rolled(store)
    assert all(found.values())
    roll_up(store, config, DAY, DAY + 86_400)
    assert rolled(store) == found
    assert not list(tmp_path.glob("letters-*.jsonl"))


def test_what_cannot_be_rolled_up_is_a_dead_letter(store: Store, config: Path, tmp_path: Path) -> None:
    send(store, tmp_path, POINTS)
    key = store.rows()[0].key
    store.set_cell(store.layout.data_table, key, "t", b"\x12", b"odd")
    given = {one.name: StaticValueProvider(str, "") for one in JOB.parameters}
    given |= {name: StaticValueProvider(str, text) for name, text in texts(store, config).items()}
    run(Launch(built(store), given))
    (letters,) = tmp_path.glob("letters-*.jsonl")
    (letter,) = map(json.loads, letters.read_text().splitlines())
    assert base64.b64decode(json.loads(letter["payload"])["key"]) == key
    assert all(rolled(store).values())


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        ({"rollup_config": ""}, UsageError, "the launch gives no rollup_config"),
        ({"day": "28.2.2024"}, UsageError, "28.2.2024"),
        ({"lookback_days": "many"}, UsageError, "lookback_days"),
        ({"table_prefix": "nowhere-"}, UsageError, "with --table_prefix nowhere-tsdb|missing in instance"),
        ({"rollup_config": "none.json"}, UsageError, "cannot read the rollup configuration none.json"),
    ],
)
def test_a_launch_that_makes_no_sense_says_why(
    store: Store, config: Path, wrong: dict[str, str], error: type[Exception], said: str
) -> None:
    given = {one.name: StaticValueProvider(str, "") for one in JOB.parameters}
    given |= {name: StaticValueProvider(str, text) for name, text in (texts(store, config) | wrong).items()}
    with pytest.raises((error, BigtableError), match=said):
        list(PeriodFn(Launch(built(store), given)).process(None))


def test_the_day_is_the_last_complete_one_unless_it_is_given(store: Store, config: Path) -> None:
    given = {one.name: StaticValueProvider(str, "") for one in JOB.parameters}
    given |= {name: StaticValueProvider(str, text) for name, text in texts(store, config).items()}
    assert list(PeriodFn(Launch(built(store), given)).process(None)) == [
        (DAY * 1000, DAY * 1000 + 86_400_000)
    ]
    given |= {"day": StaticValueProvider(str, ""), "lookback_days": StaticValueProvider(str, "2")}
    with mock.patch("pipelines.rollup_deferred.time") as clock:
        clock.time.return_value = DAY + 3 * 86_400 + 3600.0
        found = list(PeriodFn(Launch(built(store), given)).process(None))
    assert found == [(DAY * 1000, (DAY + 3 * 86_400) * 1000)]


def test_the_template_has_places_for_all_values(tmp_path: Path) -> None:
    flags = [one for one in service_flags(tmp_path) if not one.startswith("--runner")]
    path = tmp_path / "template.json"
    with mock.patch.dict(os.environ, {"NO_GCE_CHECK": "true"}), contextlib.redirect_stdout(io.StringIO()):
        assert (
            rollup_classic.main(
                ["--project=my-project", "--salt_width=1", *flags, f"--template_location={path}"]
            )
            == 0
        )
    job = read_job(tmp_path)
    assert {one.name: job.options[one.name] for one in JOB.parameters} == {
        one.name: None for one in JOB.parameters
    }
    assert not job.graph.external()
    assert job.graph.steps() == [
        *("Accumulate", "AllRefused", "Both", "Chunks", "DeadLetters", "Encode", "GroupPerRow", "Once"),
        *("Period", "SpreadChunks", "SpreadShared", "Standing", "Write", "WriteAtOnce"),
    ]
    assert all(coder.is_deterministic() for coder in job.graph.key_coders().values())


def test_the_program_says_what_it_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="give --project, and --template_location"):
        rollup_classic.main(["--project=my-project"])
    with pytest.raises(SystemExit):
        rollup_classic.main(["--project=my-project", "--day=2024-02-28"])
    assert re.search("unknown option --day", capsys.readouterr().err)
