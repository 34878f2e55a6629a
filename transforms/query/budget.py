"""What one request reads: counted, within a budget over which its scans stop, and noted to be repeated."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from timebeam.schema.core.rows import Row
from timebeam.schema.core.selection import Reader, Scan
from timebeam.transforms.bigtable.retry import Stop, StoppedError
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.read.table_reader import TableReader


@dataclasses.dataclass(frozen=True, slots=True)
class Budget:
    """The most that a request may read, of all its queries together.

    Attributes:
      rows, size: of the tables; size is bytes of keys and values.
      points: decoded, and filled in, which bounds memory: about 40 bytes each while a query runs.
      shown: points of the answer, about 250 bytes each while it is written.
      seconds: from the start of the request.
    """

    rows: int
    points: int
    shown: int
    size: int
    seconds: float

    @classmethod
    def of_seconds(cls, seconds: float) -> Budget:
        """A budget of time alone."""
        return cls(sys.maxsize, sys.maxsize, sys.maxsize, sys.maxsize, seconds)


class OverBudgetError(StoppedError):
    """A request has used up a budget: which, how far it came, and what would be cheaper."""


class AbandonedError(StoppedError):
    """Nobody waits for the answer any more."""


class Meter(Stop):
    """What a request has read so far; as `Target.stop` it stops scans, and reads that wait for Bigtable.

    `set` says that the client has gone.

    Attributes:
      remembers: makes a reader that has rows of earlier requests, which count as if they were read.
      transcript: takes note of the reads; None for no note.
    """

    def __init__(self, budget: Budget, remembers: Callable[[Reader], Reader] | None = None) -> None:
        super().__init__(budget.seconds)
        self.budget, self.remembers = budget, remembers
        self.transcript: Transcript | None = None
        self.rows = self.points = self.shown = self.size = 0

    @classmethod
    def of(cls, target: Target) -> Meter:
        """The meter that is the `stop` of a target; where none is, a new one that allows all."""
        return target.stop if isinstance(target.stop, Meter) else cls(Budget.of_seconds(math.inf))

    def add_row(self, row: Row) -> None:
        """Counts a row; raises as `check` does."""
        for cell in row.cells:
            self.size += len(cell.qualifier) + len(cell.value)
        self.add_key(row.key)

    def add_key(self, key: bytes) -> None:
        """Counts a row of which only the key was read; raises as `check` does."""
        self.rows += 1
        self.size += len(key)
        self.check()

    def add_points(self, count: int) -> None:
        """Counts points that were decoded, or are about to be filled in; raises as `check` does."""
        self.points += count
        self.check()

    @property
    def read(self) -> tuple[int, int, int]:
        """Rows, bytes and points so far; set back if what was read since then is read again."""
        return self.rows, self.size, self.points

    @read.setter
    def read(self, read: tuple[int, int, int]) -> None:
        self.rows, self.size, self.points = read

    def add_shown(self, count: int) -> None:
        """Counts points of the answer; raises as `check` does."""
        self.shown += count
        self.check()

    def check(self) -> None:
        """Stops a request that is to read no more.

        Raises:
          OverBudgetError: a budget is used up.
          AbandonedError: the client has gone.
        """
        if self.is_set:
            raise AbandonedError("the client has gone")
        budget = self.budget
        if (  # what each row asks, so no list is made
            self.rows > budget.rows
            or self.points > budget.points
            or self.shown > budget.shown
            or self.size > budget.size
            or self.seconds > budget.seconds
        ):
            self._reject()

    def _reject(self) -> None:
        """Raises OverBudgetError for the first budget that is used up."""
        spent = (
            ("rows", self.rows, self.budget.rows, "filter by more tags, or ask for a shorter time"),
            ("points", self.points, self.budget.points, "downsample by longer intervals that rollups serve"),
            ("points in its answer", self.shown, self.budget.shown, "downsample, or group series together"),
            ("bytes", self.size, self.budget.size, "filter by more tags, or ask for a shorter time"),
            ("seconds", self.seconds, self.budget.seconds, "ask for a shorter time, or fewer series"),
        )
        for noun, amount, most, cheaper in spent:
            if amount > most:
                raise OverBudgetError(
                    f"The query needs more than {most:,} {noun}, the budget of a request. It stopped after "
                    f"{self.rows:,} rows, {self.points:,} points and {self.size:,} bytes in "
                    f"{self.seconds:.1f} s. To make it cheaper, {cheaper}."
                )


class MeteredReader:
    """A `Reader` that counts what it reads; the rows of the UID table too."""

    def __init__(self, reader: Reader, meter: Meter) -> None:
        self._reader, self.meter = reader, meter

    def scan(self, scan: Scan) -> Iterator[Row]:
        """See `Reader.scan`; raises as `Meter.check` does."""
        rows, transcript = self._reader.scan(scan), self.meter.transcript
        for row in rows if transcript is None else transcript.scan(scan, rows):
            self.meter.add_row(row)
            yield row

    def rows(self, table: str, keys: Sequence[bytes]) -> Mapping[bytes, Row]:
        """See `Reader.rows`; raises as `Meter.check` does."""
        self.meter.check()
        transcript, remembers = self.meter.transcript, self.meter.remembers
        read = (self._reader if remembers is None else remembers(self._reader)).rows
        rows = read(table, keys) if transcript is None else transcript.rows(read, table, keys)
        for row in rows.values():
            self.meter.add_row(row)
        return rows


def metered(target: Target, reader: Callable[[Target], Reader] = TableReader) -> Reader:
    """A reader that counts what it reads if the target has a meter; a reader alone if not."""
    return MeteredReader(reader(target), target.stop) if isinstance(target.stop, Meter) else reader(target)


def metered_keys(target: Target, keys: Iterable[bytes]) -> Iterator[bytes]:
    """The keys of rows, counted if the target has a meter; raises as `Meter.check` does."""
    meter = target.stop
    for key in keys:
        if isinstance(meter, Meter):
            meter.add_key(key)
        yield key


class _Scanned(NamedTuple):
    """A scan of which so many rows were taken; None for all."""

    scan: Scan
    most: int | None


class _ByKeys(NamedTuple):
    """A read of single rows."""

    table: str
    keys: Sequence[bytes]


class Transcript:
    """The reads of a request, each with a digest of its rows.

    Who repeats the reads and gets the same digests can take the same answer.
    """

    def __init__(self) -> None:
        self.reads: list[tuple[_Scanned | _ByKeys, bytes]] = []
        self._running = 0

    @property
    def is_complete(self) -> bool:
        """Whether no read has failed."""
        return self._running == 0

    def scan(self, scan: Scan, rows: Iterable[Row]) -> Iterator[Row]:
        """The rows of a scan; those that are taken are noted."""
        self._running += 1
        digest, count = hashlib.sha256(), 0
        try:
            for row in rows:
                digest.update(msgspec.msgpack.encode(row))
                count += 1
                yield row
        except GeneratorExit:  # these rows are enough, and are so again
            self._note(_Scanned(scan, count), digest.digest())
            raise
        self._note(_Scanned(scan, None), digest.digest())

    def _note(self, read: _Scanned | _ByKeys, digest: bytes) -> None:
        self.reads.append((read, digest))
        self._running -= 1

    def rows(
        self, read: Callable[[str, Sequence[bytes]], Mapping[bytes, Row]], table: str, keys: Sequence[bytes]
    ) -> Mapping[bytes, Row]:
        """The rows with these keys, which `read` reads and which are noted."""
        self._running += 1
        rows = read(table, keys)
        in_order = [rows[key] for key in sorted(rows)]
        self._note(_ByKeys(table, keys), hashlib.sha256(msgspec.msgpack.encode(in_order)).digest())
        return rows

    def is_repeated(self, reader: Reader) -> bool:
        """Whether a reader reads the same rows again."""
        for read, digest in self.reads:
            repeated = Transcript()
            if isinstance(read, _Scanned):
                rows = itertools.islice(reader.scan(read.scan), read.most)
                collections.deque(repeated.scan(read.scan, rows), maxlen=0)
            else:
                repeated.rows(reader.rows, *read)
            if repeated.reads[0][1] != digest:
                return False
        return True

    @property
    def key_count(self) -> int:
        """How many keys and key ranges it has in memory."""
        return sum(
            len(read.scan.ranges if isinstance(read, _Scanned) else read.keys) for read, _ in self.reads
        )
