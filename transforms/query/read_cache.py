"""What is kept of earlier reads: rows of the UID table by time, and digests of what a request has read."""

from __future__ import annotations

import collections
import hashlib
import itertools
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec

from timebeam.schema.core.rows import Row
from timebeam.schema.core.selection import Reader, Scan

Kept = TypeVar("Kept")

KEPT_SECONDS = 60.0
"""How long rows of the UID table and lists are kept: a renamed UID is known to all after this time."""


class TimedCache(Generic[Kept]):
    """Values by key, each for some seconds; if there are more than `most`, all are dropped."""

    def __init__(
        self, most: int, seconds: float = KEPT_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._seconds, self._clock = most, seconds, clock
        self._values: dict[Hashable, tuple[float, Kept]] = {}

    def get(self, key: Hashable) -> Kept | None:
        """The value of a key; None if there is none, or only an old one."""
        made_s, value = self._values.get(key, (0.0, None))
        return value if self._clock() - made_s < self._seconds else None

    def put(self, key: Hashable, value: Kept) -> None:
        """Keeps a value that was read just now."""
        if len(self._values) >= self._most:
            self._values = {}
        self._values[key] = self._clock(), value


class UidCache:
    """Rows of the UID table, by time; a name without a row is looked for each time."""

    def __init__(self, table: str, rows: TimedCache[Row]) -> None:
        self._table, self._rows = table, rows

    def rows(self, reader: Reader, table: str, keys: Sequence[bytes]) -> Mapping[bytes, Row]:
        """See `Reader.rows`; those of other tables are read each time."""
        if table != self._table:
            return reader.rows(table, keys)
        rows = {key: row for key in keys if (row := self._rows.get(key)) is not None}
        missing = [key for key in keys if key not in rows]
        if missing:
            for key, row in reader.rows(table, missing).items():
                self._rows.put(key, row)
                rows[key] = row
        return rows


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
