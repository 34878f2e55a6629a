"""What Terraform and the schedulers must know of the program, generated from the program.

| file | content |
|---|---|
| templates/terraform/variables_jobs.tf | variables of jobs and the layout: the templates' parameters |
| templates/terraform/tables/layouts.json | tables, families and versions of each layout |
| templates/dashboard.json | the dashboard of Cloud Monitoring: every documented metric |
| templates/schedule/rollup.json | the body with which Cloud Scheduler launches the nightly job |

A counter of Beam is `dataflow.googleapis.com/job/user_counter` there, its name the label `metric_name`; of a
distribution the mean is shown, NAME_MEAN. `JOB_NAME` stands for the streaming job.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from timebeam.pipelines.deploy.templates import described, template_parameters, write_or_check
from timebeam.pipelines.options.catalogue import layout_parameters
from timebeam.pipelines.options.parameters import DECLARED
from timebeam.schema.core.contract import Store
from timebeam.schema.core.rows import TableSpec
from timebeam.schema.stores import STORES, find_opentsdb, make_store
from timebeam.transforms.flow.metrics import COUNTERS, DISTRIBUTIONS

_JOB = 'resource.type="dataflow_job" AND resource.label.job_name="JOB_NAME"'
_CLUSTER = 'resource.type="bigtable_cluster"'
_SUBSCRIPTION = 'resource.type="pubsub_subscription"'
_WIDTH, _HEIGHT, _COLUMNS = 6, 4, 12

_CHARTS = {
    "Points a minute": ("points_read", "points_packed", "points_duplicate"),
    "Rejected a minute, by kind": tuple(name for name in COUNTERS if name.startswith("rejected_")),
    "Messages a minute": ("messages_read",),
    "Bytes a minute: read, and written before compression": ("bytes_read", "bytes_written"),
    "Rows and cells a minute": ("rows_written", "cells_written", "index_rows_written"),
    "Names a minute: in the cache, looked up, given a UID": ("uid_hits", "uid_misses", "uids_assigned"),
}

_GAUGES = {
    "How far the stream is behind, s": (
        ("dataflow.googleapis.com/job/data_watermark_age", _JOB),
        ("dataflow.googleapis.com/job/system_lag", _JOB),
    ),
    "CPUs of the workers": (("dataflow.googleapis.com/job/current_num_vcpus", _JOB),),
    "Oldest message that waits, s": (
        ("pubsub.googleapis.com/subscription/oldest_unacked_message_age", _SUBSCRIPTION),
    ),
    "Messages that wait": (("pubsub.googleapis.com/subscription/num_undelivered_messages", _SUBSCRIPTION),),
    "Bigtable: CPU of the cluster, and of its hottest node": (
        ("bigtable.googleapis.com/cluster/cpu_load", _CLUSTER),
        ("bigtable.googleapis.com/cluster/cpu_load_hottest_node", _CLUSTER),
    ),
    "Bigtable: share of the nodes' storage": (
        ("bigtable.googleapis.com/cluster/storage_utilization", _CLUSTER),
    ),
}


def dashboard() -> dict[str, Any]:
    """The message Dashboard of Cloud Monitoring's API, as JSON has it."""
    placed = {name for names in _CHARTS.values() for name in names}
    unplaced = tuple(name for name in COUNTERS if name not in placed)
    charts = {**_CHARTS, **({"Other things a minute": unplaced} if unplaced else {})}
    widgets = [_chart(title, [_counter(name) for name in names]) for title, names in charts.items()]
    widgets += [_chart(f"{name}, mean", [_mean(name)]) for name in DISTRIBUTIONS]
    widgets += [
        _chart(title, [_gauge(metric, resource) for metric, resource in gauges])
        for title, gauges in _GAUGES.items()
    ]
    per_line = _COLUMNS // _WIDTH
    tiles = [
        {
            "xPos": _WIDTH * (number % per_line),
            "yPos": _HEIGHT * (number // per_line),
            "width": _WIDTH,
            "height": _HEIGHT,
            "widget": widget,
        }
        for number, widget in enumerate(widgets)
    ]
    return {"displayName": "timebeam", "mosaicLayout": {"columns": _COLUMNS, "tiles": tiles}}


def _chart(title: str, data: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"title": title, "xyChart": {"dataSets": list(data), "yAxis": {"scale": "LINEAR"}}}


def _counter(name: str) -> dict[str, Any]:
    """What a counter grew by in a minute, of all steps."""
    return _line(name, f"{_of_user(name)} AND {_JOB}", "ALIGN_DELTA", "REDUCE_SUM")


def _mean(name: str) -> dict[str, Any]:
    return _line(name, f"{_of_user(f'{name}_MEAN')} AND {_JOB}", "ALIGN_MEAN", "REDUCE_MEAN")


def _of_user(name: str) -> str:
    kind = 'metric.type="dataflow.googleapis.com/job/user_counter"'
    return f'{kind} AND metric.label.metric_name="{name}"'


def _gauge(metric: str, resource: str) -> dict[str, Any]:
    legend = "${resource.label.subscription_id}" if resource is _SUBSCRIPTION else metric.split("/")[-1]
    return _line(legend, f'metric.type="{metric}" AND {resource}', "ALIGN_MAX", None)


def _line(legend: str, only: str, aligner: str, reducer: str | None) -> dict[str, Any]:
    aggregation = {"alignmentPeriod": "60s", "perSeriesAligner": aligner}
    if reducer:
        aggregation["crossSeriesReducer"] = reducer
    return {
        "plotType": "LINE",
        "legendTemplate": legend,
        "timeSeriesQuery": {"timeSeriesFilter": {"filter": only, "aggregation": aggregation}},
    }


OWNED = (
    "config",
    "profile",
    "input_subscription",
    "rollup_config",
    "dead_letters",
    "instance",
    "app_profile",
    "bigtable_writer",
    "log",
    "unattended",
)
"""Parameters that the Terraform module sets itself, to what it makes."""

_FOLDER = Path("templates")
_HCL_TYPES = {"BOOLEAN": "bool", "NUMBER": "number"}

_VARIABLES = {
    "ingest": "The streaming job.",
    "rollup": "The nightly job.",
    "delete": "The nightly deletion of old points and rollups; see delete_schedule.",
    "archive": "The nightly move of closed hours into the archive; see archive_schedule.",
}
"""The jobs that the Terraform module runs, and what their variables are for."""

_BODY_PARAMETERS = {
    "rollup_config": "gs://MY-BUCKET/rollups.json",
    "layout": "opentsdb",
    "instance": "MY-INSTANCE",
    "app_profile": "MY-BATCH-PROFILE",
    "dead_letters": "gs://MY-BUCKET/dead-letters/rollup",
    "delay_hours": "2",
    "lookback_days": "2",
}


def shared_parameters() -> list[str]:
    """The names of the parameters that both jobs share since they say what the tables are."""
    of_rollup = {parameter["name"] for parameter in template_parameters("rollup")}
    return [
        parameter["name"]
        for parameter in template_parameters("ingest")
        if parameter["group"] == "Layout" and parameter["name"] in of_rollup
    ]


def variables() -> str:
    """variables_jobs.tf."""
    shared = shared_parameters()
    of_job = {
        job: [each for each in template_parameters(job) if each["name"] not in OWNED] for job in _VARIABLES
    }
    stored = [described(each) for each in layout_parameters()[2:] if each.stored]
    of_tables = [
        attribute
        for each in of_job["ingest"]
        if each["name"] in shared
        for attribute in (stored if each["name"] == "settings" else [each])
    ]
    blocks = [
        "# Generated by `python -m timebeam.pipelines.deploy.infrastructure write` from the parameters.",
        "locals {\n  stored_settings = " + json.dumps([each["name"] for each in stored]) + "\n}",
        _variable(
            "layout",
            "How points are stored: what the stream, the nightly jobs and the tables share.",
            of_tables,
        ),
    ]
    for job, title in _VARIABLES.items():
        blocks.append(_variable(job, title, [each for each in of_job[job] if each["name"] not in shared]))
    return "\n\n".join(blocks) + "\n"


def _variable(name: str, title: str, parameters: Sequence[Mapping[str, Any]]) -> str:
    """A variable that is an object with an attribute for each parameter; null where the program decides."""
    width = max(len(parameter["name"]) for parameter in parameters)
    lines = [f'variable "{name}" {{', "  description = <<-EOT", f"    {title}", ""]
    lines += [f"    {parameter['name']}: {_escaped(parameter['help'])}" for parameter in parameters]
    lines += ["  EOT", "", "  type = object({"]
    for parameter in parameters:
        kind = _HCL_TYPES.get(parameter["type"], "string")
        lines.append(
            f"    {parameter['name']:{width}} = {kind if parameter['required'] else f'optional({kind})'}"
        )
    lines.append("  })")
    if not any(parameter["required"] for parameter in parameters):
        lines.append("  default = {}")
    for parameter in parameters:
        lines += _validation(f"var.{name}.{parameter['name']}", parameter)
    return "\n".join([*lines, "}"])


def _validation(variable: str, parameter: Mapping[str, Any]) -> list[str]:
    """The block that checks one attribute; none for what any text may be, and for booleans."""
    if parameter["type"] == "BOOLEAN" or not parameter["regex"]:
        return []
    if parameter["enum"]:
        values = ", ".join(json.dumps(value) for value in parameter["enum"])
        condition = f"contains([{values}], coalesce({variable}, {json.dumps(parameter['enum'][0])}))"
        expected = f"one of {', '.join(parameter['enum'])}"
    else:
        accepted = f"{variable} == null || can(regex({_escaped(json.dumps(parameter['regex']))}, {variable}))"
        condition, expected = accepted, f"such as {parameter['example']}"
    message = _escaped(json.dumps(f"{parameter['name']} must be {expected}."))
    return [
        "",
        "  validation {",
        f"    condition     = {condition}",
        f"    error_message = {message}",
        "  }",
    ]


def _escaped(text: str) -> str:
    """A text in which HCL finds no template."""
    return re.sub(r"([$%])\{", r"\1\1{", text)


def layouts() -> dict[str, dict[str, Any]]:
    """The tables of each layout with its default options, by name.

    Returns:
      of each table `families` with their versions; `ages`, whether cells may expire; `salted`, whether
      keys can begin with a salt; `class_prefix`, what families of retention classes begin with, or None.
    """
    tables: dict[str, dict[str, Any]] = {
        name: {spec.name: _table(name, spec) for spec in _layout(name).tables()} for name in STORES
    }
    return tables | {DECLARED: {}}


def _layout(name: str, **options: object) -> Store:
    defaults = {parameter.name: parameter.default for parameter in layout_parameters()}
    return make_store(name, {**defaults, **options})


def _table(layout: str, spec: TableSpec) -> dict[str, Any]:
    (classed,) = (table for table in _layout(layout, retention="7").tables() if table.name == spec.name)
    of_class = sorted(set(classed.families) - set(spec.families))
    return {
        "families": dict(spec.families),
        "ages": bool(spec.cell_time),
        "salted": spec.holds_points and find_opentsdb(_layout(layout)) is not None,
        "class_prefix": of_class[0].removesuffix("7") if of_class else None,
    }


def scheduler_body() -> dict[str, Any]:
    """LaunchFlexTemplateRequest of the nightly rollup: the same every night; the job finds its own day."""
    return {
        "launchParameter": {
            "jobName": "timebeam-rollup",
            "containerSpecGcsPath": "gs://MY-BUCKET/templates/rollup.json",
            "parameters": _BODY_PARAMETERS,
            "environment": {
                "tempLocation": "gs://MY-BUCKET/tmp",
                "stagingLocation": "gs://MY-BUCKET/staging",
                "maxWorkers": 10,
                "machineType": "n2-standard-2",
                "serviceAccountEmail": "timebeam-worker@MY-PROJECT.iam.gserviceaccount.com",
                "sdkContainerImage": "MY-REGION-docker.pkg.dev/MY-PROJECT/timebeam/timebeam-rollup:0.1.0",
                "additionalUserLabels": {"app": "timebeam"},
            },
        }
    }


def files() -> dict[Path, str]:
    """The content of all generated files by their paths in the repository."""
    return {
        _FOLDER / "terraform" / "variables_jobs.tf": variables(),
        _FOLDER / "terraform" / "tables" / "layouts.json": json.dumps(layouts(), indent=2) + "\n",
        _FOLDER / "dashboard.json": json.dumps(dashboard(), indent=2) + "\n",
        _FOLDER / "schedule" / "rollup.json": json.dumps(scheduler_body(), indent=2) + "\n",
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Writes or checks the files."""
    description = "Generates files of Terraform and schedulers."
    return write_or_check(files(), "timebeam.pipelines.deploy.infrastructure", description, argv)


if __name__ == "__main__":
    sys.exit(main())
