"""The names that OpenTSDB accepts: core/Tags.validateString and checkMetricAndTags.

Format: docs/spec/opentsdb.md §1.3.
"""

from __future__ import annotations

import re

from timebeam.schema.points import Reason, RefusedError, Series

_PLAIN = re.compile(r"[a-zA-Z0-9\-_./]+")


def refuse_series(series: Series, max_tags: int) -> RefusedError | None:
    """Why a series cannot be stored, or None if it can."""
    try:
        if series.resources:
            raise RefusedError(
                Reason.SERIES_NOT_STORABLE,
                "OpenTSDB has no resources: send them as tags",
            )
        if not series.tags:
            raise RefusedError(Reason.NO_TAGS, "Missing tags: give at least one")
        if len(series.tags) > max_tags:
            raise RefusedError(
                Reason.TOO_MANY_TAGS, f"Too many tags: {len(series.tags)} maximum allowed: {max_tags}"
            )
        _check(series.metric, "metric name", Reason.BAD_METRIC)
        for key, value in series.tags:
            _check(key, f"tag name with value [{value}]", Reason.BAD_TAG)
            _check(value, f"tag value with key [{key}]", Reason.BAD_TAG)
    except RefusedError as error:
        return error
    return None


def _check(name: str, role: str, reason: Reason) -> None:
    """Checks that a name is legal and fits ISO-8859-1.

    A TSD stores characters above U+00FF as `?`, which makes different names equal: refused here.

    Raises:
      RefusedError: `reason`, or NAME_NOT_STORABLE.
    """
    if _PLAIN.fullmatch(name):
        return
    if not name:
        raise RefusedError(reason, f"Invalid {role}: empty string")
    for character in name:
        if not (_PLAIN.fullmatch(character) or (character.isalpha() and ord(character) <= 0xFFFF)):
            raise RefusedError(reason, f'Invalid {role} ("{name[:80]}"): illegal character: {character}')
        if ord(character) > 0xFF:
            raise RefusedError(
                Reason.NAME_NOT_STORABLE,
                f'Invalid {role} ("{name[:80]}"): names are stored as ISO-8859-1, which has no {character}',
            )
