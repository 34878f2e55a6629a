"""Formats and stores of other packages, by entry points: a package is imported when its name is given.

A package names its class in its pyproject.toml; a name of timebeam's own is never looked up:

    [project.entry-points."timebeam.formats"]
    firm-json = "firm_json:FirmJson"
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from timebeam.schema.core.declared_options import DeclaredOptions, Option

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")

FORMAT_GROUP = "timebeam.formats"
"""The group of entry points of message formats."""

STORE_GROUP = "timebeam.stores"
"""The group of entry points of stores; experimental."""


class PluginError(ValueError):
    """A format or store of another package cannot be used; the message says what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Plugin:
    """A format or store of another package.

    Attributes:
      group: `FORMAT_GROUP` or `STORE_GROUP`.
      target: MODULE:CLASS.
      package, version: of the distribution that provides it.
    """

    group: str
    name: str
    target: str
    package: str
    version: str

    def __str__(self) -> str:
        noun = "format" if self.group == FORMAT_GROUP else "store"
        return f"{noun} {self.name} of package {self.package} {self.version}"

    def load(self, base: type[T]) -> type[T]:
        """The class, which is imported only now.

        Raises:
          PluginError: it cannot be imported, or is no `base` of this name.
        """
        module, _, class_name = self.target.partition(":")
        try:
            found = getattr(importlib.import_module(module), class_name)
        except Exception as error:  # whatever the import of another package raises
            raise PluginError(f"{self} cannot be imported: {type(error).__name__}: {error}"[:400]) from error
        if not (isinstance(found, type) and issubclass(found, base)):
            raise PluginError(f"{self}: {self.target} is no class that derives from {base.__name__}")
        if getattr(found, "name", None) != self.name:
            raise PluginError(f"{self}: the attribute `name` of {self.target} is not {self.name!r}")
        return found


@functools.lru_cache(maxsize=64)
def find_plugin(group: str, name: str) -> Plugin | None:
    """The format or store of another package with a name; None if no package has it.

    Raises:
      PluginError: two packages have it.
    """
    from importlib.metadata import entry_points  # takes a few milliseconds

    found = [_plugin(each) for each in entry_points(group=group, name=name)]
    packages = sorted({plugin.package for plugin in found})
    if len(packages) > 1:
        raise PluginError(f"{name} is in two packages, {' and '.join(packages)}: uninstall one")
    return found[0] if found else None


def list_plugins(group: str) -> Sequence[Plugin]:
    """All formats, or stores, of other packages, by name; imports none of them."""
    from importlib.metadata import entry_points

    return sorted((_plugin(each) for each in entry_points(group=group)), key=lambda each: each.name)


def _plugin(entry: EntryPoint) -> Plugin:
    package, version = (entry.dist.name, entry.dist.version) if entry.dist else ("unknown", "0")
    return Plugin(entry.group, entry.name, entry.value, package, version)


def own_options(
    name: str, options: type[DeclaredOptions], shared: type[DeclaredOptions], owner: str
) -> tuple[Option, ...]:
    """The options of a plug-in without those that it shares, each shown for it alone.

    Args:
      name: of the plug-in.
      options, shared: the class of its options, and the base that all have.
      owner: the option that chooses it: `format` or `layout`.

    Raises:
      PluginError: the name of one does not begin with that of the plug-in, so it may be that of another one.
    """
    start = name.replace("-", "_") + "_"
    inherited: set[str] = {*getattr(shared, "__dataclass_fields__", ())}
    own = tuple(option for option in options.declared() if option.name not in inherited)
    for option in own:
        if not option.name.startswith(start):
            raise PluginError(
                f"{owner} {name} declares option {option.name}: its name must begin with {start}"
            )
    return tuple(dataclasses.replace(option, shown_for=(owner, (name,))) for option in own)
