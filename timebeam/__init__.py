"""Metric time series in Google Cloud Bigtable: Apache Beam pipelines, and the layouts of real systems.

`open` opens the tables of a store, to be asked and to be written; `parse` turns bytes into points.
`timebeam.io` has the steps of Beam pipelines, `timebeam.formats` and `timebeam.stores` what a format or store
of your own derives from, `timebeam.testing` what holds it to the rules. All else is private:
`timebeam.schema`, `timebeam.transforms` and `timebeam.pipelines` may change in any version.

Importing this module imports neither Beam nor Google's clients; its names are imported when they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from timebeam.pipelines.query.database import Database
    from timebeam.pipelines.query.open_database import open  # noqa: A004
    from timebeam.pipelines.query.query_result import QueryResult
    from timebeam.schema.core.points import PointBatch as Points
    from timebeam.schema.core.points import Series
    from timebeam.schema.core.rejections import Rejected
    from timebeam.schema.formats.base import Parsed
    from timebeam.schema.formats.parse_points import parse
    from timebeam.transforms.bigtable.target import BigtableError

__version__ = "0.1.0"

_PLACES = {
    "BigtableError": ("transforms.bigtable.target", "BigtableError"),
    "Database": ("pipelines.query.database", "Database"),
    "Parsed": ("schema.formats.base", "Parsed"),
    "Points": ("schema.core.points", "PointBatch"),
    "QueryResult": ("pipelines.query.query_result", "QueryResult"),
    "Rejected": ("schema.core.rejections", "Rejected"),
    "Series": ("schema.core.points", "Series"),
    "open": ("pipelines.query.open_database", "open"),
    "parse": ("schema.formats.parse_points", "parse"),
}
"""By name the module and the name there."""

__all__ = [
    "BigtableError",
    "Database",
    "Parsed",
    "Points",
    "QueryResult",
    "Rejected",
    "Series",
    "open",
    "parse",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    if name in ("formats", "io", "stores", "testing"):
        return importlib.import_module(f"timebeam.{name}")
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PLACES[name]
    found = globals()[name] = getattr(importlib.import_module(f"timebeam.{module}"), attribute)
    return found
