"""The public library: its names and signatures are frozen, and each has types, a docstring and an example."""

from __future__ import annotations

import enum
import inspect
import re
import typing

import pytest

import timebeam
from tests.library.public_names import FILE, MEMBERS, MOST_NAMES, lines, members, public_objects


def test_names_and_signatures_are_the_frozen_ones() -> None:
    """A change is a line in CHANGELOG, then `python -m tests.library.public_names write`."""
    assert [*lines()] == FILE.read_text("utf-8").splitlines()


def test_names_are_few() -> None:
    assert len(public_objects()) <= MOST_NAMES


def test_what_the_first_module_has_is_shown_before_it_is_used() -> None:
    assert set(timebeam.__all__) <= set(dir(timebeam))
    with pytest.raises(AttributeError, match="no attribute 'read_frame'"):
        timebeam.read_frame  # noqa: B018


SHOWN_BY = {
    "timebeam.Parsed": "timebeam.parse",
    "timebeam.formats.FormatOptions": "timebeam.formats.RecordFormat",
    "timebeam.formats.MessageFormat": "timebeam.formats.RecordFormat",
    "timebeam.formats.option": "timebeam.stores.StoreOptions",
    "timebeam.stores.Cell": "timebeam.stores.CellStore",
    "timebeam.stores.OpenTsdb": "timebeam.stores.CellStore",
    "timebeam.stores.Row": "timebeam.stores.CellStore",
    "timebeam.stores.Store": "timebeam.stores.CellStore",
}
"""Names that the example of another one uses, or derives from."""


def test_each_has_a_docstring_and_an_example() -> None:
    """Of the class or of one of its members; errors and enums have none."""
    missing = []
    for name, public in public_objects().items():
        if typing.get_origin(public) is not None:
            continue
        texts = [inspect.getdoc(public) or ""]
        if isinstance(public, type):
            texts += [inspect.getdoc(member) or "" for member in members(name, public).values()]
            has_none = issubclass(public, (Exception, enum.Enum))
        else:
            has_none = False
        is_shown = name in SHOWN_BY or any(">>>" in text for text in texts)
        if len(texts[0]) < 30 or not (has_none or is_shown):
            missing.append(name)
    assert missing == []
    assert {*SHOWN_BY} | {*SHOWN_BY.values()} <= public_objects().keys()


def test_no_signature_has_any_in_it() -> None:
    """But of `option`, which is what a dataclass takes for a field of any type."""
    found = [line.partition("(")[0] for line in lines() if re.search(r"\bAny\b", line)]
    assert found == ["timebeam.formats.option"]


def test_members_that_are_public_exist() -> None:
    objects = public_objects()
    for name, chosen in MEMBERS.items():
        assert {*members(name, objects[name])} == {*chosen}  # type: ignore[arg-type]
