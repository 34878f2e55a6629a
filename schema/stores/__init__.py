"""Stored layouts by name: each is imported when it is asked for; no other module knows all of them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from timebeam.schema.core.contract import Capability, Layout
from timebeam.schema.core.rows import StoredLayout

if TYPE_CHECKING:
    from timebeam.schema.stores.opentsdb.layout import OpenTsdb as OpenTsdb

_OPENTSDB = "opentsdb"
_CLASSES = {
    _OPENTSDB: ("opentsdb", "OpenTsdb"),
    "heroic": ("heroic", "Heroic"),
    "heroic-readable": ("heroic", "HeroicReadable"),
    "kairosdb": ("kairosdb", "KairosDb"),
}
"""By the name of a layout its package and its class."""


class _Layouts(Mapping[str, type[Layout]]):
    """The classes of the layouts by name."""

    def __getitem__(self, name: str) -> type[Layout]:
        package, class_name = _CLASSES[name]
        found: type[Layout] = getattr(importlib.import_module(f"{__name__}.{package}.layout"), class_name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(_CLASSES)

    def __len__(self) -> int:
        return len(_CLASSES)


LAYOUTS = _Layouts()

C = TypeVar("C", bound=Capability)


class MissingCapabilityError(ValueError):
    """A layout lacks an ability.

    Args:
      layout: its name.
      noun: what it lacks, in words.
      able: the names of the layouts that have it.
    """

    def __init__(self, layout: str, noun: str, able: Sequence[str] = (_OPENTSDB,)) -> None:
        names = " and ".join([", ".join(able[:-1]), able[-1]] if len(able) > 1 else able)
        hint = f"; {names} {'have' if len(able) > 1 else 'has'}" if able else ""
        super().__init__(f"layout {layout} has no {noun}{hint}")

    @classmethod
    def of(cls, layout: str, kind: type[Capability]) -> MissingCapabilityError:
        """The error for a layout without a capability."""
        return cls(layout, kind.noun, [name for name, able in LAYOUTS.items() if issubclass(able, kind)])


def find_opentsdb(layout: StoredLayout) -> OpenTsdb | None:
    """The layout, if it is OpenTSDB's; else None."""
    if layout.name != _OPENTSDB:
        return None
    return cast("OpenTsdb", layout)


def as_opentsdb(layout: StoredLayout, noun: str) -> OpenTsdb:
    """The layout as OpenTSDB's, for what only OpenTSDB has.

    Args:
      noun: what is asked for, for the error: "annotations".

    Raises:
      MissingCapabilityError: it is another layout.
    """
    if (found := find_opentsdb(layout)) is None:
        raise MissingCapabilityError(layout.name, noun)
    return found


def capability(layout: StoredLayout, kind: type[C]) -> C:
    """The layout, typed as one with the capability.

    Raises:
      MissingCapabilityError: it lacks it.
    """
    if not isinstance(layout, kind):
        raise MissingCapabilityError.of(layout.name, kind)
    return layout


def find_capability(layout: StoredLayout, kind: type[C]) -> C | None:
    """The layout, typed as one with the capability; None if it lacks it."""
    return layout if isinstance(layout, kind) else None
