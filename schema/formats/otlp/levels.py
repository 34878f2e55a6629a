"""The messages of OTLP above the metrics: requests, `ResourceMetrics`, `ScopeMetrics`; scanned together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from timebeam.schema.bits.arrays import Int64s
from timebeam.schema.bits.protobuf import BYTES
from timebeam.schema.bits.protobuf_columns import CorruptMessagesError, Fields, scan
from timebeam.schema.bits.reasons import RejectedError
from timebeam.schema.core.rejections import Spans

FIRST, _SECOND = 1 << 3 | BYTES, 2 << 3 | BYTES
"""Number and type of the fields that hold a resource, a scope, the name of a metric, or data points."""


@dataclasses.dataclass(frozen=True, slots=True)
class Levels:
    """The messages above the metrics: the bytes of each resource and scope, and where the metrics are.

    Attributes:
      resources: of each `ResourceMetrics`.
      scopes: (number of the resource, bytes of the scope) of each `ScopeMetrics`.
      metrics: the fields of metrics, whose messages are `ScopeMetrics`.
      wholes: the span of each `ResourceMetrics`.
      kept: the attributes of the resources that were read, by their number, or why they are rejected.
    """

    resources: Sequence[bytes]
    scopes: Sequence[tuple[int, bytes]]
    metrics: Fields
    wholes: Spans
    kept: dict[int, dict[str, str] | RejectedError] = dataclasses.field(default_factory=dict)


def levels_of(padded: bytes, starts: Int64s, ends: Int64s) -> Levels:
    """The messages above the metrics of requests, from `starts` to `ends` of a text.

    Raises:
      CorruptMessagesError: some are corrupt, or no requests.
    """
    top = scan(padded, starts, ends)
    resource_metrics = top.of(FIRST)
    is_request = np.zeros(len(starts), np.bool_)
    is_request[resource_metrics.message] = True
    foreign = ~is_request & (ends > starts)
    if foreign.any():
        raise CorruptMessagesError(starts[foreign], "no request of OTLP for metrics")
    inside = scan(padded, resource_metrics.firsts, resource_metrics.ends)
    resources = [b""] * len(resource_metrics)
    for number, first, end in spans_of(inside.of(FIRST)):
        resources[number] = padded[first:end]
    scope_metrics = inside.of(_SECOND)
    within = scan(padded, scope_metrics.firsts, scope_metrics.ends)
    scopes = [(number, b"") for number in scope_metrics.message.tolist()]
    for number, first, end in spans_of(within.of(FIRST)):
        scopes[number] = scopes[number][0], padded[first:end]
    metrics = within.of(_SECOND)
    return Levels(resources, scopes, metrics, (resource_metrics.starts, resource_metrics.ends))


def spans_of(fields: Fields) -> Iterator[tuple[int, int, int]]:
    """(number of the message, start, end of the content) of each field."""
    return zip(fields.message.tolist(), fields.firsts.tolist(), fields.ends.tolist(), strict=True)
