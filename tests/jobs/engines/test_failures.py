"""What a user is told when a run in other processes fails, or when no such run can be had."""

from __future__ import annotations

import importlib.util
import resource
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from tests.support.commands import timebeam
from tests.support.points import BASE_S
from tests.support.processes.children import start_command
from tests.support.processes.text_ingest import text_ingest
from tests.support.processes.tracked import Deadly
from tests.support.stored import Store
from timebeam.pipelines.beam_patches.local_runner import LOCAL_RUNNER
from timebeam.pipelines.jobs.run import run_with_progress
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions
from timebeam.transforms.bigtable.target import BigtableError, Target

TWO = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]


def few_bytes() -> None:
    """Lets this process and its children write short files only."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


def run(target: Target, layout: OpenTsdb, folder: Path) -> None:
    """An ingest of one point by two processes."""
    path = folder / "points.txt"
    path.write_text(f"put sys.load {BASE_S} 1 host=a\n")
    flags = [*TWO, f"--runner={LOCAL_RUNNER}"]
    run_with_progress(text_ingest(layout, target, str(path), folder / "dead", flags))


@pytest.mark.long
def test_what_bigtable_said_to_a_worker_is_one_line(bigtable: tuple[str, str], prefix: str, tmp_path: Path):
    layout = OpenTsdb(OpenTsdbOptions(table_prefix=f"{prefix}missing-"))
    with pytest.raises(BigtableError, match=r"\A404 .*missing-tsdb-uid.*\Z"):
        run(Target(*bigtable), layout, tmp_path)


@pytest.mark.long
# The runner's own thread, which reads what the worker sends.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_that_dies_is_one_line(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))  # workers import the layout
    store = Store.create(bigtable, prefix)
    with pytest.raises(ChildProcessError, match="a worker process died"):
        run(store.target, Deadly(store.layout.options), tmp_path)


def test_an_error_of_a_step_in_a_worker_is_one_line(bigtable: tuple[str, str], prefix: str, tmp_path: Path):
    """Dead letters on a full disk: here files of at most 20,000 bytes."""
    store = Store.create(bigtable, prefix)
    (tmp_path / "points.txt").write_text(f"put sys.load {BASE_S} x host=a\n" * 1_000)
    arguments = [
        *("ingest", *store.flags, "--format=opentsdb-text", "--quiet", *TWO),
        *(f"--input={tmp_path / 'points.txt'}", f"--dead-letters={tmp_path / 'dead'}"),
    ]
    process = start_command(arguments, tmp_path / "ran", {}, few_bytes)
    process.join()
    said = (tmp_path / "ran" / "err").read_text()
    assert (process.exitcode, said) == (1, "timebeam ingest: [Errno 27] File too large\n")


def test_a_runner_that_there_is_not_is_wrong_usage():
    ran = timebeam("ingest", "--layout=opentsdb", "--format=influx", "--input=x", "--runner=Foo")
    assert ran.code == 2
    assert "--runner Foo: Unexpected pipeline runner" in ran.err


def test_a_runner_that_mixes_up_outputs_is_rejected():
    name = "apache_beam.runners.dask.dask_runner.DaskRunner"
    ran = timebeam("ingest", "--layout=opentsdb", "--format=influx", "--input=x", f"--runner={name}")
    assert ran.code == 2
    why = "mixes up the outputs of a step" if importlib.util.find_spec("dask") else "No module named 'dask'"
    assert why in ran.err


def _interrupted(number: int) -> int:
    raise KeyboardInterrupt


def test_ctrl_c_within_a_step_is_ctrl_c() -> None:
    pipeline = beam.Pipeline(options=PipelineOptions([f"--runner={LOCAL_RUNNER}"]))
    pipeline | beam.Create([1]) | beam.Map(_interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_with_progress(pipeline)
