"""One declaration: the templates' files, the programs' options and Dataflow's own messages agree."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import re
from typing import Any
from unittest import mock

import pytest
from google.cloud import dataflow_v1beta3
from google.protobuf import json_format

from tests.support.servers.dataflow import ROOT, as_texts, environment
from timebeam.pipelines.commands import find_command
from timebeam.pipelines.deploy.templates import JOBS, as_options, files, launch, metadata, template_parameters
from timebeam.pipelines.options.command_line import CommandParser
from timebeam.pipelines.options.parameters import UsageError

FLEX = list(JOBS)
NO_VALUE = "no\nvalue"
BAD = {
    "NUMBER": ["", "x", "-1", "1e3", "0x10"],
    "BOOLEAN": ["", "yes", "1", "truefalse"],
    "ENUM": ["", "opentsdb,heroic", "TABLE"],
    "GCS_READ_FILE": ["", "/tmp/file", "gs://", "gs://bucket", "s3://bucket/file", " gs://bucket/file"],
    "PUBSUB_SUBSCRIPTION": ["", "points", "projects/p/topics/points", "/projects/p/subscriptions/s"],
}
BAD_TEXTS = {
    "settings": ["", "salt_width", "salt_width=1;", "=1", "salt_width=1;;x=2"],
    "dead_letters": ["", "dead-letters", "projects/p/subscriptions/s", "gs://bucket"],
    "also": ["", "rollup", "meta,"],
    "instance": ["", "1", "My-Instance", "projects/p/instances/i"],
    "app_profile": ["", "-p", "a b"],
    "max_new_series": ["", "app.*", "app.*=", "=5", "-1", "5,", "1.5"],
    "max_series": ["", "app.*="],
    "keep_days": ["", "app.*=", "1.5", "7/", "never"],
    "log": ["", "deleted", "gs://bucket"],
    "older_than": ["", "30", "d", "1.5d"],
    "max_tag_values": ["", "app.*="],
    "table_prefix": ["a/b", "ä"],
    "day": ["", "2026", "20-11-2026", "yesterday", "2026-11-20T00:00:00Z"],
    "start": ["", "yesterday", "1h", "2026-11-20T", "-1h-ago"],
    "end": ["", "tomorrow", "2026-13"],
    "zone": ["", "+01:00", "Europe Berlin"],
    "otlp_resource": ["", ",", "a,", ",a", "a,,b"],
    "overflow_tag": ["", "a,b"],
    "drop_tags": ["", ",", "a,", ",a", "a,,b"],
    "keep_tags": ["", ",", "a,", ",a", "a,,b"],
    "otlp_histogram": ["", "mean", "count,", "count, sum"],
    "influx_metric": ["", "metric", "{measurement}"],
    "avro_fields": ["", "metric", "metric=", "=name", "metric=name,,value=v"],
    "parquet_fields": ["", "metric", "metric=", "=name", "metric=name,,value=v"],
    "avro_schema": ["", "points", "schema.avsc"],
    "profile": ["", "a b", "prod/x"],
    "formats": ["", "influx,", "influx avro", "Influx"],
}


@pytest.mark.parametrize("path", files(), ids=str)
def test_the_committed_file_is_the_generated_one(path: Any) -> None:
    committed = (ROOT / path).read_text("utf-8")
    assert committed == files()[path], "run `python -m timebeam.pipelines.deploy.templates write`"


def test_no_other_template_is_committed() -> None:
    assert {path.parent.name for path in (ROOT / "templates").glob("*/metadata.json")} == set(JOBS)


@pytest.mark.parametrize("name", JOBS)
def test_the_metadata_is_dataflows_message(name: str) -> None:
    parsed = dataflow_v1beta3.TemplateMetadata.pb(dataflow_v1beta3.TemplateMetadata())
    json_format.ParseDict(metadata(JOBS[name]), parsed)
    assert [one.name for one in parsed.parameters] == [one["name"] for one in template_parameters(name)]
    assert all(one.label and one.help_text and one.group_name for one in parsed.parameters)
    assert len({one.label for one in parsed.parameters}) == len(parsed.parameters)
    required = [not one.is_optional for one in parsed.parameters]
    assert required == sorted(required, reverse=True)
    groups = [one.group_name for one in parsed.parameters if one.is_optional]
    assert len([one for one, before in zip(groups, ["", *groups], strict=False) if one != before]) == len(
        set(groups)
    )


def test_only_the_stream_has_streaming_modes() -> None:
    modes = {"supportsAtLeastOnce", "supportsExactlyOnce", "defaultStreamingMode"}
    for name, job in JOBS.items():
        found = metadata(job)
        assert found["streaming"] == (name == "ingest")
        assert modes & found.keys() == (modes if name == "ingest" else set())
    assert metadata(JOBS["ingest"])["defaultStreamingMode"] == "AT_LEAST_ONCE"


@pytest.mark.parametrize("name", JOBS)
def test_a_form_shows_parameters_only_where_they_count(name: str) -> None:
    by_name = {parameter["name"]: parameter for parameter in metadata(JOBS[name])["parameters"]}
    for parameter in by_name.values():
        parent = by_name.get(parameter.get("parentName", ""))
        if parent is not None:
            choices = {option["value"] for option in parent["enumOptions"]}
            assert set(parameter["parentTriggerValues"]) <= choices
        assert parent is not None or "parentName" not in parameter
        if parameter["groupName"] == "Format" and parameter["name"] != "formats":  # of all formats
            assert parameter["parentName"] == "format"


@pytest.mark.parametrize("name", JOBS)
def test_regexes_take_the_example_and_reject_bad_values(name: str) -> None:
    for one in template_parameters(name):
        regex = one["regex"]
        assert regex, one["name"]
        assert regex.startswith("^(")
        assert regex.endswith(")$")
        assert "(?" not in regex  # what RE2 and Java's regexes share
        # as Dataflow matches, which asks for a match anywhere
        assert re.search(regex, one["example"]), one
        assert one["default"] is None or re.search(regex, one["default"]), one
        assert all(re.search(regex, value) for value in one["enum"]), one
        bad = BAD.get(one["type"], [])
        if one["type"] == "TEXT":
            assert one["name"].removeprefix("to_") in BAD_TEXTS, f"bad values of {one['name']} must be named"
            bad = BAD_TEXTS[one["name"].removeprefix("to_")]
        for value in [NO_VALUE, *bad]:
            assert not re.search(regex, value), (one["name"], value)
        assert one["example"] in metadata_help(name, one["name"])


def metadata_help(job: str, parameter: str) -> str:
    (found,) = [one for one in metadata(JOBS[job])["parameters"] if one["name"] == parameter]
    return str(found["helpText"])


@pytest.mark.parametrize("name", FLEX)
def test_the_program_knows_all_parameters_and_the_template_all_options(name: str) -> None:
    shown = io.StringIO()
    with (
        mock.patch.dict(os.environ, environment(name)),
        contextlib.redirect_stdout(shown),
        pytest.raises(SystemExit),
    ):
        launch(["--help-all"])
    words = re.findall(r"^  --(?:\[no-\])?([-a-z]+)", shown.getvalue(), re.MULTILINE)
    options = {word.replace("-", "_") for word in words}
    options = {{"set": "settings", "to_set": "to_settings"}.get(each, each) for each in options}
    parameters = {one["name"] for one in template_parameters(name)}
    left_out = JOBS[name].left_out
    assert options == parameters | left_out.keys()
    assert not parameters & left_out.keys()
    assert all(left_out.values()), "each option that is no parameter needs its reason"


@pytest.mark.parametrize("name", JOBS)
def test_the_program_reads_examples_and_defaults_as_texts(name: str) -> None:
    job = JOBS[name]
    command = find_command(job.command)
    parser = CommandParser([dataclasses.replace(one, required=False) for one in command.parameters])
    described = template_parameters(name)
    files = ("avro_schema", "config", "profile")  # files of the example's bucket
    kept = {one["name"]: one["example"] for one in described if one["name"] not in files}
    _, rest = parser.parse_known_args([word for text in as_texts(kept) for word in as_options(text)])
    assert rest == []
    nothing = vars(parser.parse_args([]))
    for one in described:
        if one["default"] is not None:
            (text,) = as_texts({one["name"]: one["default"]})
            assert vars(parser.parse_args([text]))[one["name"]] == nothing[one["name"]], one["name"]
        if one["type"] in ("NUMBER", "BOOLEAN", "ENUM"):
            with pytest.raises(UsageError):
                parser.parse_args(as_texts({one["name"]: "x"}))


def test_what_a_program_cannot_do_without_is_required() -> None:
    for job in JOBS.values():
        required = {one.name for one in job.parameters if one.required}
        needed = {one.name for one in job.declared if one.required} - job.without.keys()
        settings = {one.name for one in job.parameters if one.setting}
        assert needed <= job.required
        assert required == job.required - settings
        assert all(
            one.help.endswith("; required here or in the file of config")
            for one in job.parameters
            if one.name in job.required & settings
        )
