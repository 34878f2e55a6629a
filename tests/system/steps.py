"""A history as plain data: how its tables are laid out, and the commands that run on them in order.

Steps refer to others by name only, so that any step, file or point can be left out and the rest still means
something: that is what makes a history easy to shrink. msgspec writes and reads them as JSON.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from tests.support.model import SeriesName

DAY_S = 86_400
HOUR_S = 3600
START_S = 1_772_236_800
"""2026-02-28: the day after it begins a month."""
HOURS = 48

SERIES: list[SeriesName] = [
    ("sys.cpu", (("host", "a"), ("mode", "user"))),
    ("sys.cpu", (("host", "a"), ("mode", "sys"))),
    ("sys.cpu", (("host", "b"), ("mode", "user"))),
    ("sys.größe", (("host", "a"),)),
    ("sys.größe", (("host", "b"), ("mode", "user"))),
]
METRICS = sorted({metric for metric, _ in SERIES})

Value: TypeAlias = "int | float"


class _Data(msgspec.Struct, frozen=True, tag=True):
    """Immutable, and JSON that tells its own type."""


class Point(_Data, frozen=True, tag=True):
    """A point as it is sent: `in_ms` says which unit a format that has both writes it in."""

    series: int
    time_ms: int
    in_ms: bool
    value: Value


class File(_Data, frozen=True, tag=True):
    """An input file: its points in order, lines that every reader must reject, and its modification time."""

    format: str
    suffix: str
    arrival_ms: int
    points: list[Point]
    broken: list[str]


class Trouble(_Data, frozen=True, tag=True):
    """What happens to the calls of a command, counted from 1 among those that change a table.

    `kind`: `pass` (some calls fail, and succeed when they are repeated), `abort` (from the `nth` on all
    fail, then the command is run again), `kill` (a child process dies by SIGKILL at the `nth`, then the
    command is run again), `refuse` (some rows are rejected for good, then their letters are replayed).
    """

    kind: str
    nth: int = 1
    seed: int = 0


class Ingest(_Data, frozen=True, tag=True):
    """`timebeam ingest`; `limited`: with `--max-series 0`, so that no new name gets a UID."""

    name: str
    files: list[File]
    packing: str | None
    writer: str
    create: bool
    mark: bool
    trouble: Trouble | None = None
    limited: bool = False


class Again(_Data, frozen=True, tag=True):
    """The same ingest once more."""

    of: str


class Replay(_Data, frozen=True, tag=True):
    """`timebeam replay` of the dead letters of an ingest, with all names created."""

    of: str


class Delete(_Data, frozen=True, tag=True):
    """The points of one series in one hour are deleted behind the project's back."""

    series: int
    hour: int


class Remove(_Data, frozen=True, tag=True):
    """`timebeam delete` of one series, first and last time in ms, with `--series` if `all_of_it`."""

    series: int
    first_ms: int
    last_ms: int
    all_of_it: bool
    trouble: Trouble | None = None


class Expire(_Data, frozen=True, tag=True):
    """`timebeam delete --keep-days` of the points and rollups in the first days of one metric.

    `rollup_days`: with -1 rollups stay forever; with None they go with `rollup --changed`.
    """

    metric: str
    days: int
    rollup_days: int | None
    trouble: Trouble | None = None


class Rollup(_Data, frozen=True, tag=True):
    """`timebeam rollup --start --end`, in hours from START_S."""

    start: int
    end: int
    trouble: Trouble | None = None


class ChangedRange(_Data, frozen=True, tag=True):
    """`timebeam rollup --changed`."""


class Compact(_Data, frozen=True, tag=True):
    """`timebeam compact`, in hours from START_S."""

    start: int
    end: int
    form: str
    trouble: Trouble | None = None


class Archive(_Data, frozen=True, tag=True):
    """`timebeam archive`, in hours from START_S, of tables with an archive."""

    start: int
    end: int
    delete_source: bool
    trouble: Trouble | None = None


class Copy(_Data, frozen=True, tag=True):
    """`timebeam copy` into the second tables, in hours from START_S."""

    start: int
    end: int
    trouble: Trouble | None = None


class Export(_Data, frozen=True, tag=True):
    """`timebeam export` of whole days [first, end), counted from START_S, always into the same folder."""

    first: int
    end: int
    trouble: Trouble | None = None


class MetaSync(_Data, frozen=True, tag=True):
    """`timebeam meta sync --count`."""


class Reindex(_Data, frozen=True, tag=True):
    """`timebeam reindex`, where the index has lost its rows if `emptied`."""

    emptied: bool


class Rename(_Data, frozen=True, tag=True):
    """`timebeam names rename` of a tag value, an ingest again under the old name, `timebeam names merge`."""

    value: str
    of: str
    trouble: Trouble | None = None


Step: TypeAlias = (
    Ingest
    | Again
    | Replay
    | Delete
    | Remove
    | Expire
    | Rollup
    | ChangedRange
    | Compact
    | Archive
    | Copy
    | Export
    | MetaSync
    | Reindex
    | Rename
)


class Setup(_Data, frozen=True, tag=True):
    """The tables: the layout and its options, those of the copy, and the rollup intervals in seconds."""

    layout: str
    options: dict[str, str]
    copy_layout: str
    copy_options: dict[str, str]
    intervals: list[int]


class History(_Data, frozen=True, tag=True):
    """Everything that a run needs, and nothing else."""

    seed: int
    setup: Setup
    steps: list[Step]


def to_json(history: History) -> str:
    """One line."""
    return msgspec.json.encode(history).decode()


def from_json(text: str | bytes) -> History:
    """The inverse of `to_json`."""
    return msgspec.json.decode(text, type=History)
