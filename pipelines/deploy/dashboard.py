"""The dashboard of Cloud Monitoring, out of the metrics that the pipelines count (docs/reference/metrics.md).

A counter of Beam is `dataflow.googleapis.com/job/user_counter` there, its name the label `metric_name`; of a
distribution the mean is shown, `NAME_MEAN`. `JOB_NAME` stands for the streaming job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from timebeam.transforms.metrics import COUNTERS, DISTRIBUTIONS

_JOB = 'resource.type="dataflow_job" AND resource.label.job_name="JOB_NAME"'
_CLUSTER = 'resource.type="bigtable_cluster"'
_SUBSCRIPTION = 'resource.type="pubsub_subscription"'
_WIDTH, _HEIGHT, _COLUMNS = 6, 4, 12

_CHARTS = {
    "Points a minute": ("points_read", "points_packed", "points_duplicate"),
    "Refused a minute, by kind": tuple(name for name in COUNTERS if name.startswith("refused_")),
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
