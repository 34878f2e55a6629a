"""Regular expressions, splits, hashes and JSON texts against those of a JVM."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden.tree_cases import java_vectors
from tests.support.plain.plain_trees import plain_hash
from timebeam.schema.bits.java_text import hash_code, json_text
from timebeam.schema.bits.regex import PatternError, compiled, split

REJECTED = {
    "look-around": re.compile(r"\(\?<?[=!]"),
    "POSIX class": re.compile(r"\\[pP]\{(Alpha|Alnum|Punct)\}"),
    "back reference": re.compile(r"\\k<"),
    "octal number": re.compile(r"\\0"),
    "escape": re.compile(r"\\[Zvhucü]"),
}
"""What the vectors have of Java's syntax that is rejected: docs/use/names.md."""

DIFFERENT = {
    (r"\.(.+)$", "a.b\n"): "$ is the end of the text only",
    (r"\B", "\n.€²ß"): "word characters are ASCII",
    (r"\B", "\n²-ßcx\n/"): "word characters are ASCII",
    (r"\B", "}1€ü__c²/"): "word characters are ASCII",
}
"""The vectors that RE2 matches otherwise."""


def test_regular_expressions_are_those_of_a_jvm() -> None:
    rejected = 0
    for pattern, text, groups, pieces, _ in java_vectors():
        reasons = [name for name, syntax in REJECTED.items() if syntax.search(pattern)]
        if reasons:
            rejected += 1
            with pytest.raises(PatternError, match=r"not supported|invalid"):
                compiled(pattern)
            continue
        regex = compiled(pattern)
        match = regex.search(text)
        matched = match and [match[group] for group in range(regex.groups + 1)]
        if pieces is None:
            assert matched == groups
            with pytest.raises(PatternError, match="in two"):
                split(pattern, text)
            continue
        same = (matched, split(pattern, text)) == (groups, pieces)
        assert same == ((pattern, text) not in DIFFERENT), (pattern, text)
    assert rejected == 129
    assert len(java_vectors()) == 502


def test_hashes_are_those_of_a_jvm() -> None:
    for _, text, _, _, number in java_vectors():
        assert hash_code(text) == number.to_bytes(4, "big", signed=True)


@given(st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=("Cs",))))
def test_hashes_by_the_formula(text: str) -> None:
    assert hash_code(text) == plain_hash(text)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("(", "missing"),
        (")", "unexpected"),
        ("[", "missing"),
        ("a{", "a number of times"),
        ("a{,2}", "a number of times"),
        ("*", "no argument"),
        ("\\", "trailing"),
        ("[b-a]", "invalid character class range: 'b-a'"),
        ("a{1001}", "repetition size"),
        ("(((a{100}){100}){100}){100}", "repetition size"),
        ("(?=a)", "look-ahead"),
        ("(?!(a))", "look-ahead"),
        ("(?<!a+)b", "look-behind"),
        (r"(?<=(a)\1)b", "back reference"),
        (r"\k<n>", "back reference"),
        (r"(a)\1", "back reference"),
        (r"\12", "back reference"),
        ("a++", "possessive"),
        ("a{2}+", "possessive"),
        ("(?>a)", "atomic"),
        ("[a&&b]", "intersection"),
        ("[a[b]]", "class within a class"),
        ("[[:alpha:]]", "class within a class"),
        ("[]a]", "in front"),
        ("[^]a]", "in front"),
        (r"\p{Alpha}", "A-Za-z"),
        (r"\X", "invalid escape"),
        (r"[\D\H]", "invalid escape"),
        (r"[\b]", "invalid escape"),
        (r"[a\v]", "vertical"),
        (r"\v", "vertical"),
        (r"\C", "single byte"),
        (r"\Z", "line terminator"),
        (r"\0101", "octal"),
        (r"[\012]", "octal"),
        (r"\x{110000}", "invalid escape"),
        (r"\u0041", "x{"),
        ("\ud800", "surrogate"),
        ("(?P<n>a)", "named"),
        ("(?iU)a", "lazy"),
        ("(?x)a", "invalid perl operator"),
    ],
)
def test_what_is_not_the_same_in_re2_and_java_is_rejected_by_name(pattern: str, name: str) -> None:
    with pytest.raises(PatternError) as error:
        compiled(pattern)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("pattern", "text", "match"),
    [
        ("a$", "a\n", None),
        ("a.b", "a\rb", "a\rb"),
        ("a.b", "a\nb", None),
        (r"\s", "\x0b", None),
        (r"\w", "ü", None),
        (r"\bü", "aü", "ü"),
        ("(?i)Ü", "ü", "ü"),
        ("(?m)^b$", "a\nb\r\n", None),
    ],
)
def test_documented_differences_from_java(pattern: str, text: str, match: str | None) -> None:
    result = compiled(pattern).search(text)
    assert (result and result[0]) == match


@pytest.mark.parametrize(
    "pattern",
    [r"[\]\[]", r"\{a\}", r"[\\v]", r"\\0", r"\Q{[\E", "a}]", r"\p{L}", r"\x{6f}", "[a&b]", "a{2,}?"],
)
def test_escaped_and_quoted_characters_are_not_syntax(pattern: str) -> None:
    compiled(pattern)


def test_a_pattern_that_backtracks_is_linear() -> None:
    assert compiled("(a*)*(a*)*(a|a)*b").search("a" * 100_000) is None


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
