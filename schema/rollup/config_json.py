"""Parses the JSON of a rollup configuration (docs/spec/opentsdb.md §7.1).

Unknown fields, wrong types and duplicate keys are rejected.
"""

from __future__ import annotations

import json
from typing import Any

from timebeam.schema.bits.json_text import DuplicateKeyError, check_keys
from timebeam.schema.bits.times import parse_duration
from timebeam.schema.rollup.day_plan import RowSpan
from timebeam.schema.rollup.rollup_config import PreAggregate, RollupConfig, RollupConfigError, RollupInterval

SECTION = "timebeam"
"""The field with the section that TSDs ignore."""

_TYPES = {str: "a string", bool: "true or false", int: "a whole number", list: "a list", dict: "an object"}


def parse_config(text: str) -> RollupConfig:
    """Parses the JSON document of a configuration.

    Raises:
      RollupConfigError: it cannot be used; the message begins with the path of the field.
    """
    try:
        check_keys(text)
        document = json.loads(text)
    except DuplicateKeyError as error:
        raise RollupConfigError(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise RollupConfigError(f"not JSON: {error}") from None
    top = _ConfigObject(document, "")
    ids = top.take("aggregationIds", dict)
    intervals = top.take("intervals", list)
    ours = _ConfigObject(top.take(SECTION, dict, {}), SECTION)
    top.end()
    return _config(_aggregation_ids(ids), tuple(_intervals(intervals)), ours)


def _config(ids: dict[str, int], intervals: tuple[RollupInterval, ...], ours: _ConfigObject) -> RollupConfig:
    metrics = ours.strings("metrics", ["*"])
    pre_aggregates = ours.take("preAggregates", list, [])
    parsed = []
    for i, content in enumerate(pre_aggregates):
        fields = _ConfigObject(content, f"{SECTION}.preAggregates[{i}]")
        aggregators = tuple(sorted(name.lower() for name in fields.strings("aggregators")))
        arguments = fields.strings("metrics"), tuple(sorted(fields.strings("keepTags", []))), aggregators
        fields.end()
        parsed.append(fields.checked(PreAggregate, *arguments))
    tags = (
        ours.take("tagRaw", bool, False),
        ours.take("aggTagKey", str, "_aggregate"),
        ours.take("rawAggTagValue", str, "RAW"),
    )
    ours.end()
    return RollupConfig(ids, intervals, metrics, tuple(parsed), *tags)


def _aggregation_ids(content: dict[str, Any]) -> dict[str, int]:
    fields = _ConfigObject(content, "aggregationIds")
    ids: dict[str, int] = {}
    for name in content:
        if name.lower() in ids:
            raise RollupConfigError(f"aggregationIds: duplicate {name.lower()}")
        ids[name.lower()] = fields.take(name, int)
    return ids


def _intervals(contents: list[Any]) -> list[RollupInterval]:
    intervals = []
    for i, content in enumerate(contents):
        fields = _ConfigObject(content, f"intervals[{i}]")
        span, delay = fields.take("rowSpan", str), fields.take("delaySla", str, None)
        values = (
            fields.take("interval", str),
            fields.parsed("rowSpan", RowSpan.parse, span),
            fields.take("table", str),
            fields.take("preAggregationTable", str),
            fields.take("defaultInterval", bool, False),
            fields.parsed("delaySla", parse_duration, delay) // 1000 if delay else None,
        )
        fields.end()
        intervals.append(fields.checked(RollupInterval, *values))
    return intervals


_REQUIRED: Any = object()


class _ConfigObject:
    """Reads the fields of a JSON object, each once."""

    def __init__(self, content: Any, path: str) -> None:
        if not isinstance(content, dict):
            raise RollupConfigError(f"{path or 'the document'}: must be an object")
        self._unread = dict(content)
        self._path = path

    def _name(self, field: str) -> str:
        return f"{self._path}.{field}" if self._path else field

    def take(self, field: str, kind: type, default: Any = _REQUIRED) -> Any:
        """A field of a type, or its default."""
        value = self._unread.pop(field, default)
        if value is _REQUIRED:
            raise RollupConfigError(f"{self._name(field)}: is missing")
        if value is not default and type(value) is not kind:
            raise RollupConfigError(f"{self._name(field)}: must be {_TYPES[kind]}")
        return value

    def strings(self, field: str, default: Any = _REQUIRED) -> tuple[str, ...]:
        """A list of strings, or its default."""
        values = self.take(field, list, default)
        if not all(isinstance(value, str) for value in values):
            raise RollupConfigError(f"{self._name(field)}: must be a list of strings")
        return tuple(values)

    def parsed(self, field: str, parse: Any, text: str) -> Any:
        """The parsed value of a field; its errors begin with the name of the field."""
        try:
            return parse(text)
        except ValueError as error:
            raise RollupConfigError(f"{self._name(field)}: {error}") from None

    def checked(self, record: type[Any], *values: Any) -> Any:
        """A new record; the path is added to its errors, which begin with the name of a field."""
        try:
            return record(*values)
        except RollupConfigError as error:
            raise RollupConfigError(self._name(str(error))) from None

    def end(self) -> None:
        """Rejects unknown fields: those that have not been read."""
        if self._unread:
            raise RollupConfigError(f"{self._name(next(iter(self._unread)))}: no such field")
