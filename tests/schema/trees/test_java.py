"""Regular expressions, splits, hashes and JSON texts against those of a JVM."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schema.java_text import hash_code, json_text
from schema.trees.java_regex import PatternError, compiled, split
from tests.golden.tree_cases import java_vectors
from tests.support.plain_trees import plain_hash


def test_regular_expressions_are_those_of_a_jvm() -> None:
    for pattern, text, groups, _, _ in java_vectors():
        found = compiled(pattern).search(text)
        assert (found and [found[0], *found.groups()]) == groups, (pattern, text)


def test_splits_are_those_of_a_jvm() -> None:
    for pattern, text, _, pieces, _ in java_vectors():
        if pieces is None:
            with pytest.raises(PatternError, match="in two"):
                split(pattern, text)
        else:
            assert split(pattern, text) == pieces, (pattern, text)


def test_hashes_are_those_of_a_jvm() -> None:
    for _, text, _, _, number in java_vectors():
        assert hash_code(text) == number.to_bytes(4, "big", signed=True)


@given(st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=("Cs",))))
def test_hashes_by_the_formula(text: str) -> None:
    assert hash_code(text) == plain_hash(text)


@pytest.mark.parametrize(
    "pattern",
    [
        *("(", ")", "[", "a{", "a{,2}", "*", "\\", "[b-a]", "(?<!a+)b", r"\k<n>"),
        *("a++", "(?>a)", "[a&&b]", "[a[b]]", r"\p{L}", r"\X", "(?m)^a", "a(?i)b", "(?!(a))", r"(?<=(a)\1)b"),
        *(r"[\D\H]", r"[\b]", r"\12", r"\x{110000}", r"\ud800", "[]a]"),
    ],
)
def test_what_cannot_be_carried_over_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        compiled(pattern)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("plain /", '"plain /"'),
        ('"\\', '"\\"\\\\"'),
        ("\b\t\n\f\r\x00\x1f\x7f", '"\\b\\t\\n\\f\\r\\u0000\\u001F\x7f"'),
        ("größe €", '"größe €"'),
        ("\U0001f600", '"\\uD83D\\uDE00"'),
    ],
)
def test_texts_are_escaped_as_jackson_does(text: str, written: str) -> None:
    assert json_text(text) == written


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_texts_are_read_back(text: str) -> None:
    assert json.loads(json_text(text)) == text
