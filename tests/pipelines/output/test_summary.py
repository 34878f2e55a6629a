"""The figures at the end of a run, where the runner's own are wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from apache_beam.metrics.execution import MetricKey, MetricResult
from apache_beam.metrics.metric import MetricResults
from apache_beam.metrics.metricbase import MetricName
from apache_beam.runners.runner import PipelineResult, PipelineState

from tests.support.inputs.letters import letter, write_letters
from timebeam.pipelines.output.progress_and_summary import PointsSummary
from timebeam.transforms.flow import metrics

COUNTED = {
    "points_read": 100,
    "points_packed": 90,
    "points_duplicate": 3,
    "rejected_input": 5,
    "rejected_name": 2,
}


class Result(PipelineResult):
    """A finished pipeline whose runner gives these counters."""

    def __init__(self, counters: Mapping[str, int]) -> None:
        super().__init__(PipelineState.DONE)
        self._counters = counters

    def metrics(self) -> MetricResults:
        keys = {name: MetricKey("step", MetricName(metrics.NAMESPACE, name)) for name in self._counters}
        found = [MetricResult(keys[name], None, figure) for name, figure in self._counters.items()]

        class Results(MetricResults):
            def query(self, filter: Any = None) -> dict[str, list[MetricResult]]:  # noqa: A002
                return {"counters": [one for one in found if self.matches(filter, one.key)]}

        return Results()


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    """Where there are seven letters, in two files."""
    names = [letter("x", "parse", reason) for reason in ("bad-syntax", "bad-encoding", "bad-tag")]
    write_letters(tmp_path / "dead-1.jsonl", [*names, *names])
    write_letters(tmp_path / "dead-2.jsonl", [names[0]])
    return str(tmp_path / "dead")


def summary(prefix: str, **changed: int) -> PointsSummary:
    """Of a run in other processes whose runner gives the figures of COUNTED but for these."""
    metrics.totals.clear()
    return PointsSummary.of(Result({**COUNTED, **changed}), 1.0, False, prefix)


def test_rejections_are_the_letters(prefix: str) -> None:
    """A rejection that the runner lost is counted; the reasons are known, though other processes rejected."""
    for lost in (0, 1, 7):
        counted = summary(prefix, rejected_input=max(0, 5 - lost), rejected_name=2 - max(0, lost - 5))
        assert counted.rejected == {"bad-encoding": 2, "bad-syntax": 3, "bad-tag": 2}
        assert counted.unaccounted == 0
        assert "not accounted for" not in counted.to_text()


@pytest.mark.parametrize(
    ("changed", "missing"),
    [({"points_packed": 80}, 10), ({"points_read": 60}, -40), ({"points_duplicate": 0}, 3)],
)
def test_other_lost_figures_are_told(prefix: str, changed: dict[str, int], missing: int) -> None:
    counted = summary(prefix, **changed)
    assert counted.unaccounted == missing
    assert f"not accounted for          {missing}: this runner lost some counts" in counted.to_text()
    assert json.loads(counted.to_json())["unaccounted"] == missing


def test_without_the_letters_rejections_are_counted_by_kind(tmp_path: Path) -> None:
    """They are in a topic, or on another machine."""
    counted = summary(str(tmp_path / "nothing"))
    assert counted.rejected == {"rejected_input": 5, "rejected_name": 2}
    assert counted.unaccounted == 0
    assert summary(str(tmp_path / "nothing"), rejected_input=4).unaccounted == 1


def test_rejected_rows_are_not_points(tmp_path: Path) -> None:
    write_letters(tmp_path / "dead-1.jsonl", [letter("x")])
    counted = summary(
        str(tmp_path / "dead"), rejected_bigtable=1, rejected_input=0, rejected_name=0, points_read=93
    )
    assert (counted.rejected, counted.unaccounted) == ({"write-refused": 1}, 0)
