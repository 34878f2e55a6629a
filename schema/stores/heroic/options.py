"""The options of Heroic's tables; imports no numpy."""

from __future__ import annotations

import dataclasses

from timebeam.schema.core.declared_options import DeclaredOptions, archive_option, option


@dataclasses.dataclass(frozen=True, slots=True)
class HeroicOptions(DeclaredOptions):
    """The options of the layout `heroic`.

    Attributes:
      table_prefix: put before the table names `metrics` and `series`.
    """

    table_prefix: str = ""
    archive: bool = archive_option()


@dataclasses.dataclass(frozen=True, slots=True)
class HeroicReadableOptions(HeroicOptions):
    """The options of the layout `heroic-readable`."""

    resource_names: bool = option(
        "heroic-readable: put the names of resources into row keys, beside their values", False, stored=True
    )
