"""Leases: only one job at a time rewrites the same rows of a store from what it read of them.

Compaction, deletion, archive and merge take a lease of metrics and a range of time, then read, write, and
give it back. A lease is a ticket: it is granted once no earlier one of another run that overlaps it is left,
so that no run waits forever. All leases of a store are in one row of its table of settings, PREFIXtimebeam:

| row key | family | qualifier | value | timestamp |
|---|---|---|---|---|
| `leases` | `settings` | `ticket` | the number of the last ticket, 8 bytes, big-endian | 0 |
| | | `lease`, 16 hexadecimal digits | JSON: the fields of `_Ticket` | 0 |
| | | `moved` | the ticket of the last job that moved rows to other keys, as `ticket` | 0 |

The holder renews its lease while it works. One that has not changed for `LEASE_SECONDS`, by the clock of the
process that waits for it, is that of a dead process, and is deleted by compare-and-set. A holder that has
not renewed its lease for a third of that time renews it before it sends another request, and fails if others
have deleted it. So no clocks of two machines are compared, but that nobody waits for a lease of yesterday.

A deletion takes one lease after another, and must not miss rows that are moved in between, from keys that it
has not read to keys that it has read. Its leases are rejected if rows were moved since it began.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import random
import secrets
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from google.api_core.exceptions import DeadlineExceeded, GoogleAPICallError

from timebeam.schema.bits.times import DAY_MS
from timebeam.schema.core.rows import Cell, Deletion, Row, TableSpec
from timebeam.transforms.bigtable.compare_and_set import Replacement, replace_cells
from timebeam.transforms.bigtable.existing_tables import table_exists
from timebeam.transforms.bigtable.target import BigtableError, Target
from timebeam.transforms.bigtable.write_rows import write_all
from timebeam.transforms.read.table_reader import read_rows

LEASE_SECONDS = 90.0
"""How long others wait for a holder that does not renew its lease."""
END_S = 1 << 62
"""The end of a lease of all times, in seconds."""
LEASES = b"leases"
"""The key of the row of all leases."""

_FAMILY = "settings"
_TICKET = b"ticket"
_MOVED = b"moved"
_LEASE = b"lease "
_FORGOTTEN_MS = DAY_MS
_MOST_METRICS_BYTES = 2_000  # a value of more than 8,000 bytes cannot be compared
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Ticket:
    """What a lease says.

    Attributes:
      ticket: its number.
      run: of the job; leases of one run never wait for each other.
      command: what the run is called where others wait for it.
      metrics: hexadecimal digits of the metrics; empty for all.
      start_s, end_s: rows whose times lie in [start_s, end_s), in seconds.
      renewed_ms: when it was renewed, by the holder's clock, in ms since 1970.
    """

    ticket: int
    run: str
    command: str
    metrics: tuple[str, ...]
    start_s: int
    end_s: int
    renewed_ms: int

    def waits_for(self, other: _Ticket) -> bool:
        """Whether this lease is granted only when the other one is given back."""
        return (
            other.ticket < self.ticket
            and other.run != self.run
            and other.start_s < self.end_s
            and self.start_s < other.end_s
            and (not self.metrics or not other.metrics or not set(self.metrics).isdisjoint(other.metrics))
            and not other.is_forgotten
        )

    @property
    def is_forgotten(self) -> bool:
        """Whether nobody has renewed it for a day."""
        return self.renewed_ms + _FORGOTTEN_MS <= _now_ms()


class RangeLease:
    """A lease that is held; `check` is called before each request that writes."""

    def __init__(self, target: Target, table: str, column: bytes, ticket: _Ticket, since_s: float) -> None:
        self._target, self._table, self._column, self._ticket = target, table, column, ticket
        self._renewed_s = since_s
        self._lock = threading.Lock()

    def check(self) -> None:
        """Renews the lease if that is long ago.

        Raises:
          BigtableError: others have taken this process for dead.
          GoogleAPICallError: the lease could not be renewed.
        """
        if time.monotonic() - self._renewed_s > LEASE_SECONDS / 3:
            self.renew()

    def renew(self) -> None:
        """Renews the lease; raises as `check` does."""
        with self._lock:
            since_s = time.monotonic()
            ticket = dataclasses.replace(self._ticket, renewed_ms=max(_now_ms(), self._ticket.renewed_ms + 1))
            change = Replacement(LEASES, _cell(self._column, self._ticket), _cell(self._column, ticket))
            if not replace_cells(self._target, self._table, [change])[0]:
                raise BigtableError(
                    f"this process stood still for {LEASE_SECONDS:g} s, and others assumed that it had "
                    "ended (table "
                    f"{self._table}, row {LEASES.decode()}); what it had not written is unchanged: run the "
                    "same command again"
                )
            self._ticket, self._renewed_s = ticket, since_s

    def release(self) -> None:
        """Gives the lease back."""
        deletion = Deletion(_FAMILY, self._column)
        write_all(self._target, self._table, [Row(self._table, LEASES, (), [deletion])])


@dataclasses.dataclass(frozen=True, slots=True)
class Leases:
    """The leases of one run of a job.

    Attributes:
      table: that of the settings of the store (`open`).
      command: what others say that they wait for.
      run: random; the same in all workers.
    """

    target: Target
    table: TableSpec
    command: str
    run: str = dataclasses.field(default_factory=lambda: secrets.token_hex(8))

    def open(self) -> Iterator[str]:
        """Creates the table if there is none; a line that says so.

        Raises:
          BigtableError: it may not be created.
        """
        from timebeam.transforms.bigtable.create_tables import create_tables  # its client takes half a second

        if not table_exists(self.target, self.table.name):
            yield from create_tables(self.target, [self.table], dry_run=False)

    def last_moved(self) -> int:
        """The ticket of the last job that moved rows to other keys; 0 if there was none."""
        return _number(self._row().get(_MOVED)) if table_exists(self.target, self.table.name) else 0

    @contextlib.contextmanager
    def lease(
        self,
        metrics: Collection[bytes] = (),
        start_s: int = 0,
        end_s: int = END_S,
        *,
        moves: bool = False,
        moved: int | None = None,
    ) -> Iterator[RangeLease]:
        """A context with the right to rewrite rows; waits until it is granted.

        No request that writes is under way when it ends. If Bigtable has not answered one, the lease is left
        to end by itself, since that request may still be carried out.

        Args:
          metrics: UIDs, or names; empty for all.
          start_s, end_s: the times of whole rows, in seconds.
          moves: whether rows are moved to other keys.
          moved: `last_moved` when the job began; None if it need not read all rows.

        Raises:
          BigtableError: rows were moved since the job began.
          GoogleAPICallError: the row of leases could not be read or changed.
        """
        with self._renewed(self._enter(metrics, start_s, end_s, moves, moved)) as lease:
            try:
                yield lease
            except DeadlineExceeded:
                raise
            except BaseException:
                with contextlib.suppress(GoogleAPICallError):
                    lease.release()
                raise
            lease.release()

    def _enter(
        self,
        metrics: Collection[bytes],
        start_s: int,
        end_s: int,
        moves: bool = False,
        moved: int | None = None,
    ) -> RangeLease:
        """Draws a ticket and waits until it is granted."""
        names = tuple(sorted(metric.hex() for metric in metrics))
        if sum(map(len, names)) > _MOST_METRICS_BYTES:
            names = ()
        column = _LEASE + secrets.token_hex(8).encode()
        while True:
            row, since_s = self._row(), time.monotonic()
            if moved is not None and _number(row.get(_MOVED)) != moved:
                raise BigtableError(
                    f"`timebeam names merge` has moved rows of these tables since this {self.command} began, "
                    "which may have missed them: run the same command again"
                )
            last = row.get(_TICKET)
            number = _number(last) + 1
            ticket = _Ticket(
                ticket=number,
                run=self.run,
                command=self.command,
                metrics=names,
                start_s=start_s,
                end_s=end_s,
                renewed_ms=_now_ms(),
            )
            drawn = Cell(_FAMILY, _TICKET, 0, number.to_bytes(8, "big"))
            cells = [_cell(column, ticket), *([drawn._replace(qualifier=_MOVED)] if moves else ())]
            forgotten = [
                Deletion(_FAMILY, qualifier)
                for qualifier, cell in row.items()
                if qualifier.startswith(_LEASE) and _parsed(cell).is_forgotten
            ]
            change = Replacement(LEASES, last, drawn, cells, forgotten)
            if replace_cells(self.target, self.table.name, [change])[0]:
                break
            time.sleep(random.uniform(0, _FIRST_PAUSE))
        lease = RangeLease(self.target, self.table.name, column, ticket, since_s)
        earlier = _earlier(row, ticket)
        if earlier:
            with self._renewed(lease):
                self._wait(ticket, earlier)
        return lease

    def _wait(self, ticket: _Ticket, earlier: Mapping[bytes, Cell]) -> None:
        """Waits until no earlier lease that overlaps a ticket is left; deletes those of dead processes."""
        seen_s: dict[Cell, float] = {}
        pause, is_told = _FIRST_PAUSE, False
        while earlier:
            now_s = time.monotonic()
            seen_s = {cell: seen_s.get(cell, now_s) for cell in earlier.values()}
            dead = [cell for cell, since_s in seen_s.items() if now_s - since_s > LEASE_SECONDS]
            replace_cells(self.target, self.table.name, [Replacement(LEASES, cell, None) for cell in dead])
            if not is_told and pause >= _LONGEST_PAUSE:
                commands = sorted({_parsed(cell).command for cell in earlier.values()})
                _log.warning(
                    "waiting for %s, which rewrites the same rows; if it was killed, for up to %g s",
                    " and ".join(commands),
                    LEASE_SECONDS,
                )
                is_told = True
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE, LEASE_SECONDS / 4)
            earlier = _earlier(self._row(), ticket)

    @contextlib.contextmanager
    def _renewed(self, lease: RangeLease) -> Iterator[RangeLease]:
        """A context in which a thread renews a lease."""
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(LEASE_SECONDS / 6):
                try:
                    lease.renew()
                except (BigtableError, GoogleAPICallError) as error:
                    _log.debug("a lease is not renewed: %s", error)  # `check` raises it where it matters
                    return

        thread = threading.Thread(target=renew, name="timebeam-lease", daemon=True)
        thread.start()
        try:
            yield lease
        finally:
            ended.set()
            thread.join()

    def _row(self) -> dict[bytes, Cell]:
        """The cells of the row of leases, by qualifier."""
        row = read_rows(self.target, self.table.name, [LEASES]).get(LEASES)
        return {} if row is None else {cell.qualifier: cell for cell in row.cells}


def _earlier(row: Mapping[bytes, Cell], ticket: _Ticket) -> dict[bytes, Cell]:
    """The leases that a ticket waits for."""
    return {
        qualifier: cell
        for qualifier, cell in row.items()
        if qualifier.startswith(_LEASE) and ticket.waits_for(_parsed(cell))
    }


def _number(cell: Cell | None) -> int:
    """The number in a cell; 0 if there is none."""
    return 0 if cell is None else int.from_bytes(cell.value, "big")


def _cell(column: bytes, ticket: _Ticket) -> Cell:
    return Cell(_FAMILY, column, 0, json.dumps(dataclasses.asdict(ticket)).encode())


def _parsed(cell: Cell) -> _Ticket:
    fields: dict[str, Any] = json.loads(cell.value)
    return _Ticket(**fields | {"metrics": tuple(fields["metrics"])})


def _now_ms() -> int:
    return int(time.time() * 1000)
