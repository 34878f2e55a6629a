"""What the API says of its filters: /api/config/filters of OpenTSDB 2.4.1, word for word."""

from __future__ import annotations

_LITERALS = (
    "Accepts one or more exact values and matches if the series {match} any of them. Multiple values can be "
    "included and must be separated by the | (pipe) character. The filter is case {case} and will not allow "
    "characters that TSDB does not allow at write time."
)
_WILDCARDS = (
    "Performs pre, post and in-fix glob matching of values. The globs are case {case} and multiple wildcards "
    "can be used. The wildcard character is the * (asterisk). {lower}At least one wildcard must be present "
    "in the filter value. A wildcard by itself can be used as well to match on any value for the tag key."
)
_LOWER = "Case insensitivity is achieved by dropping all values to lower case. "
_REGEXP = (
    "Provides full, POSIX compliant regular expression using the built in Java Pattern class. Note that an "
    "expression containing curly braces {} will not parse properly in URLs. If the pattern is not a valid "
    "regular expression then an exception will be raised."
)
_JSON_EXAMPLE = '{{"type":"{kind}","tagk":"host","filter":"{value}","groupBy":false}}'


def _described(kind: str, description: str, *values: str) -> dict[str, str]:
    examples = [f"host={kind}({value})" for value in values]
    examples.append(_JSON_EXAMPLE.format(kind=kind, value=values[-1]))
    return {"examples": ",  ".join(examples[:-1]) + "  " + examples[-1], "description": description}


def _literal_or(kind: str, match: str, case: str) -> dict[str, str]:
    return _described(kind, _LITERALS.format(match=match, case=case), "web01", "web01|web02|web03")


def _wildcard(kind: str, case: str, lower: str) -> dict[str, str]:
    return _described(kind, _WILDCARDS.format(case=case, lower=lower), "web*", "web*.tsdb.net")


CONFIG_FILTERS = {
    "literal_or": _literal_or("literal_or", "contains", "sensitive"),
    "iliteral_or": _literal_or("iliteral_or", "contains", "insensitive"),
    "not_literal_or": _literal_or("not_literal_or", "does NOT contain", "sensitive"),
    "not_iliteral_or": _literal_or("not_iliteral_or", "does NOT contain", "insensitive"),
    "wildcard": _wildcard("wildcard", "sensitive", ""),
    "iwildcard": _wildcard("iwildcard", "insensitive", _LOWER),
    "regexp": _described("regexp", _REGEXP, ".*"),
}
"""The answer to /api/config/filters: what is known of each type of filter, by its name."""
