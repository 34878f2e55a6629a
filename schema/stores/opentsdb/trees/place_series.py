"""Places a series by the rules of a tree (docs/spec/opentsdb.md §6.2, tree/TreeBuilder.processRuleset).

rules of a level, in order ─► the first name that is not empty ─► names of the levels ─► path and leaf
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from timebeam.schema.bits import regex
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.rows import Row
from timebeam.schema.stores.opentsdb.meta_documents import QUALIFIERS
from timebeam.schema.stores.opentsdb.options import Names
from timebeam.schema.stores.opentsdb.trees.definitions import Rule, RuleType, Tree
from timebeam.schema.stores.opentsdb.trees.tree_cells import ROOT, hex_text
from timebeam.schema.stores.opentsdb.uids import uid_table


def read_uid(form: Names, row: Row | None, kind: str, uid: bytes) -> Uid | RejectedError:
    """The name and custom fields of a UID from its row, or why there are none.

    Args:
      form: of the names in the table.
    """
    name: str | None = None
    custom: Custom = {}
    for cell in row.cells if row else ():
        if cell.family != uid_table.NAME_FAMILY:
            continue
        if cell.qualifier == kind.encode():
            name = form.shown(uid_table.name_text(cell.value))
        elif cell.qualifier == QUALIFIERS[kind]:
            try:
                custom = read_custom(cell.value)
            except ValueError as error:
                why = f"the UID meta of {kind} {uid.hex()} cannot be read: {error}"
                return RejectedError(Reason.BAD_SYNTAX, why)
    if name is None:
        return RejectedError(Reason.UNKNOWN_NAME, f"UID {uid.hex()} of kind {kind} has no name")
    return Uid(name, custom)


def read_custom(meta: bytes) -> Custom:
    """The custom fields of a UIDMeta JSON; numbers and booleans as strings, as in a TSD.

    Raises:
      ValueError: it is not such JSON.
    """
    document = json.loads(meta, parse_int=str, parse_float=str)
    custom = document.get("custom") if isinstance(document, dict) else ()
    if custom is None:
        return {}
    if not isinstance(custom, dict):
        raise ValueError("custom is not an object")
    fields: dict[str, str | None] = {}
    for key, value in custom.items():
        if isinstance(value, bool):
            value = "true" if value else "false"
        if not (value is None or isinstance(value, str)):
            raise ValueError(f"custom field {key!r} is not a string")
        fields[key] = value
    return fields


Custom = Mapping[str, "str | None"]
"""The custom fields of a UID meta."""


class Uid(NamedTuple):
    """The name of a UID and the custom fields of its meta."""

    name: str
    custom: Custom = MappingProxyType({})


class TreeSeries(NamedTuple):
    """A series as rules see it, with tags in the order of the TSUID."""

    tsuid: bytes
    metric: Uid
    tags: Sequence[tuple[Uid, Uid]]

    def __str__(self) -> str:
        pairs = ",".join(f"{key.name}={value.name}" for key, value in self.tags)
        return f"{self.metric.name}{{{pairs}}}"


class Outcome(enum.StrEnum):
    """The outcome of one rule; the values explain it to users."""

    NAMED = "named"
    NO_TAG_KEY = "the series has no such tag key"
    NO_TAG_VALUE = "the series has no such tag value"
    NO_CUSTOM = "the UID meta has no such custom field"
    EMPTY_CUSTOM = "the custom field is empty"
    NO_MATCH = "the regex does not match"
    NO_GROUP = "the regex has no such group"
    EMPTY_GROUP = "the group is empty"
    NO_PIECE = "the separator leaves nothing"
    EMPTY_PIECE = "the piece is empty"


class Attempt(NamedTuple):
    """The application of one rule: its value, the matched part of it, and the resulting name."""

    rule: Rule
    outcome: Outcome
    value: str | None = None
    matched: str | None = None
    name: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """The place of a series in a tree.

    Attributes:
      steps: the attempts of each level in order; a separator has a step for each part.
      path: display names of the branches, below the root.
      leaf: display name of the leaf; empty if the series is not placed.
      failed: the last rule of each level that gave no name.
    """

    steps: Sequence[Sequence[Attempt]]
    path: tuple[str, ...]
    leaf: str
    failed: Sequence[Rule]

    @property
    def not_matched(self) -> str:
        """The failed rules, as in the cell of a series that does not match."""
        return " ".join(map(str, self.failed))


def place(tree: Tree, series: TreeSeries) -> Placement:
    """Applies the rules of a tree to a series.

    Levels without a name are left out. Equal consecutive names are one branch, except for the leaf. A series
    with a single name becomes a leaf of the root; a TSD computes this leaf too, but does not store it.

    >>> rules = (
    ...     Rule(1, 0, 0, RuleType.TAGK, field="host", regex="^([a-z]+)[.]"),
    ...     Rule(1, 1, 0, RuleType.METRIC, separator="[.]"),
    ... )
    >>> series = TreeSeries(b"", Uid("sys.cpu"), [(Uid("host"), Uid("lga.web01"))])
    >>> placement = place(Tree(1, "T", rules=rules), series)
    >>> placement.path, placement.leaf
    (('lga', 'sys'), 'cpu')

    Raises:
      RejectedError: a TSD fails on this series, or its names cannot be stored.
    """
    steps = []
    for _, rules in tree.levels():
        names_of_level = _SplitNames()
        while True:
            steps.append(_level(rules, series, names_of_level))
            if names_of_level.done:
                break
    failed = [step[-1].rule for step in steps if not step[-1].name]
    names = [step[-1].name for step in steps if step[-1].name]
    if not names or (failed and tree.strict_match):
        return Placement(steps, (), "", failed)
    for name in names:
        _check_surrogates(name)
    path: list[str] = []
    for name in names[:-1]:
        if name != (path[-1] if path else ROOT):
            path.append(name)
    return Placement(steps, tuple(path), names[-1], failed)


class _SplitNames:
    """The parts of a split value, of which each visit of the level takes the next one.

    The parts belong to the level, not the rule: if one is empty, a later rule of the level with a separator
    takes the next part, as in a TSD.
    """

    def __init__(self) -> None:
        self._names: list[str] | None = None
        self._next = 0

    def take(self, rule: Rule, value: str) -> str | None:
        """The next part; None if there are no parts.

        Raises:
          RejectedError: all parts have been taken, or the separator cuts a character in half.
        """
        if self._names is None:
            try:
                self._names = regex.split(rule.separator, value)
            except regex.PatternError as error:
                raise RejectedError(Reason.VALUE_NOT_STORABLE, f"rule {rule}: {error}") from error
            if not self._names:
                self._next = 1
                return None
        if self._next >= len(self._names):
            raise RejectedError(
                Reason.SERIES_NOT_STORABLE,
                f"rule {rule}: its level has used up all parts of {value!r}: a TSD fails on this series",
            )
        self._next += 1
        return self._names[self._next - 1]

    @property
    def done(self) -> bool:
        """Whether the level needs no further visit."""
        return self._names is None or self._next >= len(self._names)


def _level(rules: Sequence[Rule], series: TreeSeries, names: _SplitNames) -> list[Attempt]:
    """One visit of a level: its rules in order, until one gives a name."""
    attempts = []
    for rule in rules:
        attempts.append(_attempt(rule, series, names))
        if attempts[-1].name:
            break
    return attempts


def _attempt(rule: Rule, series: TreeSeries, names: _SplitNames) -> Attempt:
    value = _source(rule, series)
    if isinstance(value, Outcome):
        return Attempt(rule, value)
    _check_surrogates(value)
    if rule.regex:
        pattern = regex.compiled(rule.regex)
        match = pattern.search(value)
        if match is None:
            return Attempt(rule, Outcome.NO_MATCH, value)
        if pattern.groups <= rule.regex_group_idx:
            return Attempt(rule, Outcome.NO_GROUP, value)
        matched = match[rule.regex_group_idx + 1]
        if not matched:
            return Attempt(rule, Outcome.EMPTY_GROUP, value)
    elif rule.separator:
        piece = names.take(rule, value)
        if piece is None:
            return Attempt(rule, Outcome.NO_PIECE, value)
        matched = piece
    else:
        matched = value
    name = _display_name(rule, series, value, matched)
    return Attempt(rule, Outcome.NAMED if name else Outcome.EMPTY_PIECE, value, matched, name)


def _source(rule: Rule, series: TreeSeries) -> str | Outcome:
    """The value of a rule's source, or why there is none."""
    if rule.type is RuleType.METRIC:
        return series.metric.name
    if rule.type is RuleType.METRIC_CUSTOM:
        return _custom(rule, series.metric)
    for key, value in series.tags:
        if rule.type is RuleType.TAGV_CUSTOM:
            if value.name == rule.field:
                return _custom(rule, value)
        elif key.name == rule.field:
            return value.name if rule.type is RuleType.TAGK else _custom(rule, key)
    return Outcome.NO_TAG_VALUE if rule.type is RuleType.TAGV_CUSTOM else Outcome.NO_TAG_KEY


def _custom(rule: Rule, uid: Uid) -> str | Outcome:
    if rule.custom_field not in uid.custom:
        return Outcome.NO_CUSTOM
    value = uid.custom[rule.custom_field]
    if value is None:
        raise RejectedError(
            Reason.EMPTY_VALUE,
            f"rule {rule}: the custom field {rule.custom_field!r} of {uid.name!r} is null: a TSD fails on "
            "this series; give the field a value, or remove it",
        )
    return value or Outcome.EMPTY_CUSTOM


def _display_name(rule: Rule, series: TreeSeries, value: str, matched: str) -> str:
    """The name, by the display format if there is one, whose tokens are replaced one after the other."""
    if not rule.display_format:
        return matched
    tag_name = ""
    if rule.type is RuleType.TAGK:
        tag_name = rule.field
    elif rule.type is not RuleType.METRIC:
        tag_name = rule.custom_field
    name = rule.display_format
    for token, text in (
        ("{ovalue}", value),
        ("{value}", matched),
        ("{tsuid}", hex_text(series.tsuid)),
        ("{tag_name}", tag_name),
    ):
        name = name.replace(token, text)
    return name


def _check_surrogates(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        why = f"{name!r} has half a surrogate pair, which JSON in UTF-8 cannot hold"
        raise RejectedError(Reason.NAME_NOT_STORABLE, why) from error
