"""The options of a layout as any command takes them."""

from __future__ import annotations

from collections.abc import Mapping

from timebeam.pipelines.options.catalogue import layout_parameters
from timebeam.pipelines.options.parameters import flag


def layout_words(values: Mapping[str, object], start: str = "") -> list[str]:
    """What gives these values: `--set` for the settings of tables, else an option.

    Args:
      start: `to_` for the layout that `copy` writes.
    """
    settings = {each.name for each in layout_parameters()[2:] if each.stored}
    return [
        f"{flag(f'{start}set')}={name}={value}" if name in settings else f"{flag(start + name)}={value}"
        for name, value in values.items()
    ]
