"""Message formats: the names of ours, and what a format of your own derives from.

Our own formats are used by name: `timebeam.parse("influx", data)`, `--format influx`. A format of another
package is used by name too, once the package is installed and declares it in its pyproject.toml:

    [project.entry-points."timebeam.formats"]
    firm-json = "firm_json:FirmJson"

`timebeam.testing.check_format` holds it to the rules. docs/reference/python.md explains both. Imports neither
Beam nor Google's clients.
"""

from __future__ import annotations

import abc
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from timebeam.schema.bits.lru_cache import CACHED_BYTES, LruCache
from timebeam.schema.bits.memory_limit import POINT_BYTES, charge, charge_series, text_bytes
from timebeam.schema.bits.reasons import Reason, RejectedError, short, shown
from timebeam.schema.core.declared_options import option
from timebeam.schema.core.points import LAST_MILLISECOND, Series
from timebeam.schema.formats import FormatName
from timebeam.schema.formats.base import Framing, Message, MessageFormat, Parsed, ParsedPoint
from timebeam.schema.formats.linewise import LineRecord, LinewiseFormat
from timebeam.schema.formats.options import DEFAULTS, FormatOptions

__all__ = [
    "FormatName",
    "FormatOptions",
    "Framing",
    "MessageFormat",
    "Reason",
    "RecordFormat",
    "RejectedError",
    "option",
]

_SURROGATE = re.compile("[\ud800-\udfff]")
_FRAMINGS = (Framing.LINES, Framing.JSON, Framing.NONE)


class RecordFormat(LinewiseFormat):
    r"""The base of a format whose records are read one by one: lines, documents of JSON, or whole messages.

    A subclass has a `name` (small letters, digits and `-`), an `example` and `points`. `framing` says what a
    record is: a line (`LINES`), a line or a document of JSON over several lines (`JSON`), or a whole message
    (`NONE`, not for files). Its options, if it has any, are fields of a subclass of `FormatOptions`, which
    `options_class` names; `points` finds them in `self.options`. The base checks points, rejects records with
    their bytes and their place, and bounds memory. It reads about 150,000 points/s on one core.

    >>> class Pairs(RecordFormat):
    ...     name, example = "pairs", b"web01 sys.load 1356998400 0.5"
    ...     def points(self, record):
    ...         host, metric, seconds, number = record.decode().split()
    ...         yield metric, {"host": host}, int(seconds) * 1000, float(number)
    >>> parsed = Pairs().read(b"web01 sys.load 1356998400 0.5\nweb01 sys.load")
    >>> [(str(series), time_ms, value) for series, time_ms, value in parsed.batch.points()]
    [('sys.load{host=web01}', 1356998400000, 0.5)]
    >>> [(each.payload, each.offset, each.reason.value) for each in parsed.rejected]
    [(b'web01 sys.load', 30, 'bad-syntax')]
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.framing not in _FRAMINGS:
            names = ", ".join(framing.name for framing in _FRAMINGS)
            raise TypeError(f"{cls.__name__}: the framing of a RecordFormat is one of {names}")

    def __init__(self, options: FormatOptions = DEFAULTS) -> None:
        """A new instance, for one thread; `options` are an instance of `options_class`."""
        super().__init__(self.options_class() if options is DEFAULTS else options)
        self._series: LruCache[Series, Series] = LruCache(options.remembered)

    @property
    def options(self) -> FormatOptions:
        """Its options, an instance of `options_class`."""
        return self._options

    @abc.abstractmethod
    def points(
        self, record: bytes
    ) -> Iterable[tuple[str, Mapping[str, str], int, int | float] | RejectedError]:
        """The points of a record: (metric, tags, time in ms since 1970, value).

        Whole seconds are stored as seconds where a store tells them from milliseconds. A `RejectedError` in
        the place of a point rejects the record, and keeps its other points.

        Raises:
          RejectedError: the record is rejected, with this reason.
          ValueError: the same, as `bad-syntax`, with the message of the error.
        """

    def read(self, data: bytes) -> Parsed:
        """What bytes hold, as a message that arrives at 0 ms: points (`batch`) and `rejected` records."""
        return self.parse(Message(data, 0))

    def is_whole(self, text: bytes) -> bool:
        return self.framing is Framing.NONE or super().is_whole(text)

    def records(self, text: bytes, start: int, end: int) -> Iterator[LineRecord]:
        try:
            for point in self.points(text[start:end]):
                outcome = point if isinstance(point, RejectedError) else self._point(*point)
                yield LineRecord(start, end, outcome)
        except RejectedError as error:
            yield LineRecord(start, end, error)
        except (ValueError, RecursionError) as error:  # RecursionError: JSON of too many levels
            yield LineRecord(start, end, RejectedError(Reason.BAD_SYNTAX, f"cannot be read: {error}"))

    def _point(self, metric: str, tags: Mapping[str, str], time_ms: int, number: int | float) -> ParsedPoint:
        """A point, with the object of its series that is cached; raises RejectedError."""
        _checked(metric, tags, time_ms, number)
        series = Series.of(metric, dict(tags))
        cached = self._series.get(series)
        if cached is None:
            size = len(metric) + text_bytes(series.tags)
            charge_series(size, len(tags))
            if size <= CACHED_BYTES:
                self._series[series] = series
        charge(POINT_BYTES)
        return ParsedPoint(cached or series, time_ms, time_ms % 1000 != 0, number)

    def _parse_all(self, messages: Sequence[Message]) -> Iterator[Parsed]:
        if self.framing is Framing.NONE:  # a newline is a byte as any other
            return iter([*MessageFormat._parse_all(self, messages)])
        return super()._parse_all(messages)


def _checked(metric: str, tags: Mapping[str, str], time_ms: int, number: int | float) -> None:
    """Raises RejectedError for a point that no store can hold, whatever the types of its parts are."""
    texts = [metric, *tags, *tags.values()]
    if not all(isinstance(text, str) for text in texts):
        raise RejectedError(Reason.BAD_TAG, f"names must be strings: {short(shown(texts, 41))}")
    if not metric:
        raise RejectedError(Reason.BAD_METRIC, "the metric is empty")
    if _SURROGATE.search("".join(texts)):
        raise RejectedError(Reason.BAD_ENCODING, "a name has half a surrogate pair")
    if type(time_ms) is not int or not 0 <= time_ms <= LAST_MILLISECOND:
        why = f"time {short(shown(time_ms, 41))}: give ms since 1970, at most {LAST_MILLISECOND}"
        raise RejectedError(Reason.TIMESTAMP_OUT_OF_RANGE, why)
    if type(number) not in (int, float):
        raise RejectedError(Reason.BAD_NUMBER, f"{short(shown(number, 41))} is not a number")
    if isinstance(number, int) and not -(1 << 63) <= number < 1 << 63:
        raise RejectedError(Reason.NUMBER_OUT_OF_RANGE, "an integer of more than 64 bits")
    if not math.isfinite(number):
        raise RejectedError(Reason.NUMBER_OUT_OF_RANGE, f"{number} is not finite")
