"""Rules of trees applied the slow and plain way, by docs/spec/opentsdb.md §6.2: dicts in, cells out.

Independent of the code of `stores.opentsdb.trees`: regular expressions are Python's own, so use only those
that mean the same in Java; separators are single characters, written as patterns.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

SEPARATORS = {r"\.": ".", "-": "-", "_": "_", "/": "/"}


def plain_place(tree: dict[str, Any], series: dict[str, Any]) -> tuple[list[str], str | None, str]:
    """(branches below the root, leaf or None, the failed rules).

    Args:
      tree: as a file has it, with `treeId`.
      series: tsuid (hex), metric, tags in the order of the TSUID as (key, value), custom: by (kind, name).
    """
    levels: dict[int, dict[int, dict[str, Any]]] = {}
    for rule in tree["rules"]:
        levels.setdefault(rule["level"], {})[rule["order"]] = rule
    names: list[str] = []
    failed: list[str] = []
    for level in sorted(levels):
        rules = [levels[level][order] for order in sorted(levels[level])]
        queue: list[str] | None = None
        visits = 0
        while visits == 0 or queue:
            visits += 1
            name = ""
            for rule in rules:
                name, queue = _name(rule, series, queue)
                if name:
                    break
            if name:
                names.append(name)
            else:
                failed.append(f"[{tree['treeId']}:{rule['level']}:{rule['order']}:{rule['type']}]")
    text = " ".join(failed)
    if not names or (failed and tree.get("strictMatch")):
        return [], None, text
    path = [name for name, _ in itertools.groupby(["ROOT", *names[:-1]])]
    return path[1:], names[-1], text


def _name(
    rule: dict[str, Any], series: dict[str, Any], queue: list[str] | None
) -> tuple[str, list[str] | None]:
    """(the name that a rule gives, or empty; the pieces that are left)."""
    value = _value(rule, series)
    if not value:
        return "", queue
    if rule.get("regex"):
        match = re.search(rule["regex"], value)
        index = rule.get("regexGroupIdx", 0)
        groups = match.groups() if match else ()
        piece = groups[index] if index < len(groups) else None
        return (_shown(rule, series, value, piece) if piece else ""), queue
    if rule.get("separator"):
        if queue is None:
            queue = value.split(SEPARATORS[rule["separator"]])
            while queue and queue[-1] == "":
                queue.pop()
            if not queue:
                return "", queue
        return _shown(rule, series, value, queue[0]), queue[1:]
    return _shown(rule, series, value, value), queue


def _value(rule: dict[str, Any], series: dict[str, Any]) -> str | None:
    kind, field, custom = rule["type"], rule.get("field", ""), series["custom"]
    keys = [key for key, _ in series["tags"]]
    values = [value for _, value in series["tags"]]
    if kind == "METRIC":
        found = series["metric"]
    elif kind == "TAGK":
        found = values[keys.index(field)] if field in keys else None
    elif kind == "METRIC_CUSTOM":
        found = custom.get(("metrics", series["metric"]), {}).get(rule["customField"])
    elif kind == "TAGK_CUSTOM":
        found = custom.get(("tagk", field), {}).get(rule["customField"]) if field in keys else None
    else:
        found = custom.get(("tagv", field), {}).get(rule["customField"]) if field in values else None
    return found


def _shown(rule: dict[str, Any], series: dict[str, Any], value: str, piece: str) -> str:
    text = str(rule.get("displayFormat", ""))
    if not text:
        return piece
    tag_name = {"TAGK": rule.get("field", ""), "METRIC": ""}.get(rule["type"], rule.get("customField", ""))
    text = text.replace("{ovalue}", value)
    text = text.replace("{value}", piece)
    text = text.replace("{tsuid}", series["tsuid"])
    return text.replace("{tag_name}", tag_name)


def plain_hash(text: str) -> bytes:
    """Java's hash, with the powers of 31 written out."""
    units = [
        int.from_bytes(text.encode("utf-16-be")[at : at + 2], "big") for at in range(0, 2 * len(text), 2)
    ]
    total = sum(unit * 31 ** (len(units) - 1 - at) for at, unit in enumerate(units))
    return (total % 2**32).to_bytes(4, "big")


def plain_cells(tree: dict[str, Any], many: list[dict[str, Any]]) -> dict[tuple[bytes, bytes], Any]:
    """By (row, qualifier) the value, JSON parsed or text, of branches, leaves and failures.

    Of several series for one leaf the first one in `many` gets it.
    """
    key = tree["treeId"].to_bytes(2, "big")
    stored: dict[tuple[bytes, bytes], Any] = {}
    for series in many:
        path, leaf, failed = plain_place(tree, series)
        tsuid = bytes.fromhex(series["tsuid"])
        if leaf is None:
            if tree.get("storeFailures"):
                stored[key + b"\x02", b"tree_not_matched:" + tsuid] = failed
            continue
        names = ["ROOT", *path]
        for depth in range(len(names)):
            row = key + b"".join(map(plain_hash, names[1 : depth + 1]))
            members = {str(at): name for at, name in enumerate(names[: depth + 1])}
            stored[row, b"branch"] = {"path": members, "displayName": names[depth]}
        mine = {"displayName": leaf, "tsuid": series["tsuid"]}
        first = stored.setdefault((row, b"leaf:" + plain_hash(leaf)), mine)
        if first != mine and tree.get("storeFailures"):
            stored[key + b"\x01", b"tree_collision:" + tsuid] = first["tsuid"]
    return stored
