"""Metric time series in Google Cloud Bigtable: Apache Beam pipelines, and the layouts of real systems.

`timebeam.schema` is the library (no Beam, no network), `timebeam.transforms` the steps of pipelines,
`timebeam.pipelines` the commands. They are folders at the top of the repository; here are links to them.
`timebeam.read_frame` returns the answer to a query as a pandas DataFrame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timebeam.pipelines.query.frame import read_frame

__version__ = "0.1.0"

__all__ = ["read_frame"]


def __dir__() -> list[str]:
    """With `read_frame`, also before it is first used."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """`read_frame`, imported when it is first used: `import timebeam` alone is quick."""
    if name != "read_frame":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from timebeam.pipelines.query.frame import read_frame

    return read_frame
