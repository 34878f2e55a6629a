"""Explains an empty result: whether the table has rows, and whether they fit the options."""

from __future__ import annotations

from timebeam.schema.layouts import ReadableLayout
from timebeam.transforms.bigtable.reader import scan_keys
from timebeam.transforms.bigtable.target import Target

_LOOKED_AT = 100


def why_nothing(target: Target, layout: ReadableLayout) -> str:
    """One line on the first rows of a layout's data table, for a command that found no points."""
    tables = [spec.name for spec in layout.tables() if spec.holds_points]
    keys = [key for name in tables for key in scan_keys(target, name, limit=_LOOKED_AT)]
    names, is_many = " and ".join(tables), len(tables) > 1
    if not keys:
        return f"tables {names} are empty" if is_many else f"table {names} is empty"
    having_rows = f"tables {names} have rows" if is_many else f"table {names} has rows"
    errors = [error for key in keys if (error := layout.key_error(key))]
    if len(errors) == len(keys):
        return (
            f"{having_rows}, but none of the first {len(keys):,} fits these options ({errors[0]}): "
            f"give --layout {layout.name} and its options (salt, UID widths, row spec) as they were when the "
            "rows were written"
        )
    unfit = f", {len(errors):,} of the first {len(keys):,} do not" if errors else ""
    return f"{having_rows} that fit these options{unfit}; none matches the selection"
