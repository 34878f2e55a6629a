"""One series as a user names it, `metric tag=value ...` or a TSUID, as the rules see it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from schema.layouts import Name, Reader
from schema.layouts.opentsdb import select
from schema.layouts.opentsdb.layout import OpenTsdb
from schema.points import Reason, RefusedError, Series
from schema.trees.evaluate import TreeSeries, Uid
from transforms.trees.names import UidNames

_PRINTED = re.compile(r"([^{}\s]+)\{([^{}]*)\}")


def find_series(
    layout: OpenTsdb, words: Sequence[str], reader: Reader | None
) -> tuple[TreeSeries, list[Name]]:
    """(the series, its names that have no UID, and so no custom fields and no place in a TSUID).

    Args:
      words: a TSUID, or `metric tag=value ...`, or `metric{tag=value,...}` as queries print it.
      reader: None to look nothing up.

    Raises:
      RefusedError: it is none, a name in it cannot be stored, or a UID of the TSUID has no name.
    """
    if len(words) == 1 and re.fullmatch(r"(?:[0-9a-fA-F]{2})+", words[0]):
        if reader is None:
            raise RefusedError(Reason.BAD_SYNTAX, "a TSUID needs the UID table: give metric tag=value ...")
        (found,) = UidNames(layout, reader).series([bytes.fromhex(words[0])])
        if isinstance(found, RefusedError):
            raise found
        return found, []
    series = _parsed(" ".join(words))
    refused = layout.refuse(series)
    if refused is not None:
        raise refused
    return _with_uids(layout, series, reader)


def _parsed(text: str) -> Series:
    """The series of a text.

    Raises:
      RefusedError: it is none.
    """
    printed = _PRINTED.fullmatch(text)
    metric, *pairs = [printed[1], *printed[2].split(",")] if printed else text.split()
    tags: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or key in tags:
            why = "stands twice" if equals else "is no tag"
            raise RefusedError(
                Reason.BAD_SYNTAX, f"{pair!r} {why}; give metric tag=value tag=value ..., or a TSUID"
            )
        tags[key] = value
    return Series.of(metric, tags)


def _with_uids(layout: OpenTsdb, series: Series, reader: Reader | None) -> tuple[TreeSeries, list[Name]]:
    """The series with its TSUID, if all names have UIDs, and with custom fields."""
    names = layout.names(series)
    uids = select.look_up(layout.uid_table, names, reader) if reader else {}
    missing = [name for name in names if name not in uids]
    described: dict[Name, Uid] = {name: Uid(name.text) for name in names}
    if reader:
        found = UidNames(layout, reader).of({(name.kind, uid) for name, uid in uids.items()})
        for name, uid in uids.items():
            one = found[name.kind, uid]
            if isinstance(one, RefusedError):
                raise one
            described[name] = one
    tags = [(Name("tagk", key), Name("tagv", value)) for key, value in series.tags]
    tsuid = b""
    if not missing:
        tags.sort(key=lambda pair: uids[pair[0]] + uids[pair[1]])
        tsuid = uids[names[0]] + b"".join(uids[key] + uids[value] for key, value in tags)
    pairs = [(described[key], described[value]) for key, value in tags]
    return TreeSeries(tsuid, described[names[0]], pairs), missing
