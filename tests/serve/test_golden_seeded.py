"""Answers to seeded questions are those that a TSD 2.4.1 gave (tests/clients/test_tsd.py)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.golden.cases import HERE
from tests.support.commands import ingest, timebeam
from tests.support.plain.rolled import with_tables
from tests.support.servers.tsd_questions import (
    ROLLUPS,
    Question,
    differing,
    lines,
    questions,
    zoned_questions,
)
from tests.support.stored import Store
from timebeam.pipelines.options.place import read_config
from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.route_requests import request_of, respond

RECORDED: dict[str, Any] = json.loads((HERE / "api_seeded.json").read_text("utf-8"))
SEED: int = RECORDED["seed"]
COUNT = len(RECORDED["answers"]) // 3
ASKED = [
    *questions(SEED, COUNT, rolled=False),
    *questions(SEED, COUNT, rolled=True),
    *zoned_questions(SEED, COUNT),
]


@pytest.fixture(scope="module")
def api(bigtable: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Api:
    folder = tmp_path_factory.mktemp("seeded")
    config = folder / "rollups.json"
    config.write_text(json.dumps(ROLLUPS))
    store = with_tables(Store.create(bigtable, "golden_seeded_"), config)
    points = folder / "points.txt"
    points.write_text("".join(line + "\n" for line in lines(SEED)))
    ingest(folder, *store.flags, "--format=opentsdb-text", "--auto-create-metrics", "--input", points)
    letters = ("--dead-letters", folder / "dead")
    ran = timebeam("rollup", *store.flags, f"--rollup-config={config}", "--day=2013-01-01", *letters)
    assert ran.code == 0, ran.err
    return Api(store.target, store.layout, (store.layout, read_config(str(config))))


@pytest.mark.parametrize(("question", "recorded"), [*zip(ASKED, RECORDED["answers"], strict=True)])
def test_a_seeded_question_is_answered_as_by_a_tsd(
    api: Api, question: Question, recorded: dict[str, Any]
) -> None:
    assert (question.path, question.body) == (recorded["path"], recorded["body"])
    method, body = ("GET", b"") if question.body is None else ("POST", json.dumps(question.body).encode())
    response = respond(api, request_of(method, question.path, body))
    tsd = (recorded["status"], json.dumps(recorded["answer"]))
    assert differing(question, tsd, (response.status, json.dumps(response.body))) == []


def test_questions_are_of_many_kinds() -> None:
    asked = [question.path for question in questions(2, 300, rolled=False)]
    for word in (
        "rate",
        "counter",
        "-zero",
        "-null",
        "1dc-",
        "0all-",
        "literal_or",
        "regexp",
        "none:",
        "p99:",
    ):
        assert sum(word in path for path in asked) > 5, word
    assert asked == [question.path for question in questions(2, 300, rolled=False)]
    assert sum("rate" in question.path for question in questions(2, 300, rolled=True)) > 100


def test_another_value_time_or_series_is_a_difference() -> None:
    question = Question("", True)
    result = {"metric": "m", "tags": {"host": "a"}, "aggregateTags": [], "dps": {"1000": 1, "2000": 2.5}}
    answers = [
        [result | {"dps": {"1000": 1, "2000": 2.6}}],
        [result | {"dps": {"1000": 1, "3000": 2.5}}],
        [result | {"tags": {"host": "b"}}],
        [],
        [result, result | {"tags": {"host": "b"}}],
    ]
    same = (200, json.dumps([result]))
    assert differing(question, same, same) == []
    for answer in answers:
        assert differing(question, same, (200, json.dumps(answer))), answer
    assert differing(question, same, (400, "{}"))


def test_only_an_edge_of_rollups_is_no_difference() -> None:
    """A TSD may show one interval more of a rate, and series without a value; neither from points."""
    result = {"metric": "m", "tags": {"host": "a"}, "aggregateTags": [], "dps": {"1000": 1, "2000": 2.5}}
    empty = result | {"tags": {"host": "b"}, "dps": {}}
    tsd, ours = (200, json.dumps([result, empty])), (200, json.dumps([result | {"dps": {"2000": 2.5}}]))
    assert differing(Question("", True), tsd, ours) == []
    assert differing(Question("", False), tsd, ours)
    assert differing(Question("", True), tsd, (200, json.dumps([result | {"dps": {"1000": 1}}])))
