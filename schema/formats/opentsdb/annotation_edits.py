"""Message format `opentsdb-annotations`: the bodies of OpenTSDB's HTTP /api/annotation, single and bulk.

One object, an array of objects, or one of either per line; also a document over several lines. Source:
tsd/AnnotationRpc and meta/Annotation of OpenTSDB 2.4.1 (docs/spec/opentsdb.md §4.1). The HTTP method is POST
unless the member `method` of an object, or the attribute `method` of its message, is PUT or DELETE. In
place of `tsuid` an object may have `metric` and `tags`.
Stricter than a TSD where a TSD changes input silently: decimal and negative times, duplicate keys, other
values in place of strings, and times beyond a row key are rejected. So are deletions by a time range.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from timebeam.schema.bits.json_text import JsonPairs, NumberText, check_string, members_of, record_spans
from timebeam.schema.bits.memory_limit import charge_json
from timebeam.schema.bits.reasons import Reason, RejectedError, shown
from timebeam.schema.core.annotations import NO_CHANGES, AnnotationEdit, Method, Pairs, sorted_custom
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.formats.base import Framing, Message, MessageFormat, Parsed, Rejections
from timebeam.schema.formats.opentsdb.put_points import parse_time, tags_of, values

_KEYS = frozenset(
    ("tsuid", "metric", "tags", "startTime", "endTime", "description", "notes", "custom", "method")
)


class OpenTsdbAnnotations(MessageFormat):
    """`{"tsuid": "000001000001000001", "startTime": 1356998407, "description": "deployed"}`.

    >>> body = b'{"tsuid":"000001000001000001","startTime":1356998407,"description":"deployed"}'
    >>> (edit,) = OpenTsdbAnnotations().parse(Message(body, arrival_ms=0)).annotations
    >>> edit.method.value, edit.tsuid, edit.start, edit.description
    ('POST', '000001000001000001', 1356998407, 'deployed')
    """

    name = "opentsdb-annotations"
    example = b'{"tsuid":"000001000001000001","startTime":1356998407,"description":"deployed"}'
    framing = Framing.JSON
    edits_annotations = True

    def _parse(self, message: Message) -> Parsed:
        """See `MessageFormat.parse`; there are no points."""
        rejections = Rejections(message)
        edits: list[AnnotationEdit] = []
        text = message.text
        charge_json(text)

        def read(value: object) -> AnnotationEdit:
            return _request(value, message)

        for start, end in record_spans(text):
            for first, last, outcome in values(text, start, end, read):
                if isinstance(outcome, RejectedError):
                    rejections.add(first, last, outcome)
                else:
                    offset = message.offset + first
                    edits.append(dataclasses.replace(outcome, payload=text[first:last], offset=offset))
        return Parsed(PointBatch.of([], message.arrival_ms), rejections.rejected(), edits)


def _request(value: object, message: Message) -> AnnotationEdit:
    """The request of one JSON object of a message, without its bytes and their offset.

    Raises:
      RejectedError: it is not a request that can be carried out.
    """
    members = members_of(value, "an annotation", _KEYS, skip_null=True)
    attributes = message.envelope.attributes if message.envelope else {}
    http_method = _method(members.get("method", attributes.get("method", "")) or Method.POST.value)
    if "tsuids" in members or members.get("global"):
        raise RejectedError(
            Reason.BAD_SYNTAX, "no deletion by a time range: send each annotation with method DELETE"
        )
    start = _time(members, "startTime")
    if start is None:
        raise RejectedError(Reason.BAD_TIMESTAMP, "The start timestamp has not been set: give startTime")
    tsuid, series = _series(members)
    end, custom = _time(members, "endTime"), _custom(members.get("custom"))
    description, notes = _text(members, "description"), _text(members, "notes")
    changes = end, description, notes, custom
    if http_method is not Method.DELETE and all(field is None for field in changes):
        raise NO_CHANGES
    origin = message.source, message.offset, message.arrival_ms, message.envelope
    return AnnotationEdit(http_method, series, tsuid, start, *changes, b"", *origin)


def _method(text: object) -> Method:
    try:
        return Method(str(text).upper())
    except ValueError:
        raise RejectedError(Reason.BAD_SYNTAX, f"method {shown(text)!r}: send POST, PUT or DELETE") from None


def _time(members: dict[str, Any], key: str) -> int | None:
    """A time in the given unit, s or ms; None if missing or 0."""
    time = members.get(key)
    if time is None or time == "0":
        return None
    if not isinstance(time, str):
        raise RejectedError(Reason.BAD_TIMESTAMP, f"Invalid {key}: give an integer above 0")
    try:
        time_ms, in_ms = parse_time(time)
    except RejectedError as error:
        raise RejectedError(error.reason, f"{key}: {error.message}") from error
    return time_ms if in_ms else time_ms // 1000


def _series(members: dict[str, Any]) -> tuple[str, Series | None]:
    """(TSUID, series) of an annotation: one of them, or neither for a global annotation."""
    tsuid, metric = _text(members, "tsuid") or "", _text(members, "metric")
    if metric is None and "tags" not in members:
        return tsuid, None
    if tsuid:
        raise RejectedError(Reason.BAD_SYNTAX, "give tsuid, or metric and tags, not both")
    if metric is None:
        raise RejectedError(Reason.BAD_METRIC, "Metric name was empty")
    return "", Series.of(metric, tags_of(members.get("tags")))


def _text(members: dict[str, Any], key: str) -> str | None:
    """A string; None if missing or empty, since a TSD ignores both."""
    text = members.get(key)
    if text is None:
        return None
    if not isinstance(text, str) or isinstance(text, NumberText):
        raise RejectedError(Reason.BAD_SYNTAX, f"{key} must be a string")
    check_string(text)
    return text or None


def _custom(value: object) -> Pairs | None:
    """Custom fields; numbers and booleans become strings, as with Jackson."""
    if value is None:
        return None
    if not isinstance(value, JsonPairs):
        raise RejectedError(Reason.BAD_SYNTAX, "custom must be a JSON object of strings")
    pairs: dict[str, str] = {}
    for key, text in value:
        if isinstance(text, bool):
            text = "true" if text else "false"
        if not isinstance(text, str):
            raise RejectedError(Reason.BAD_SYNTAX, f"custom field {key!r} must be a string")
        check_string(key)
        check_string(text)
        if pairs.setdefault(key, str(text)) != text:
            raise RejectedError(Reason.BAD_SYNTAX, f"duplicate custom field {key!r}")
    return sorted_custom(list(pairs.items()))
