"""Row spans: the time that a row of a rollup table holds, and where rows begin.

Format: docs/spec/opentsdb.md §7.2.

rollup/RollupInterval.validateAndCompile and rollup/RollupUtils.getRollupBasetime of OpenTSDB 2.4.1.
Everything is in UTC and in whole seconds since 1970.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from timebeam.schema.bits.arrays import Int64s
from timebeam.schema.bits.times import DAY_S, HOUR_S

_SPAN = re.compile(r"([0-9]{1,9})([a-z]+)")
_NOMINAL_S = {"h": HOUR_S, "d": DAY_S, "n": 32 * DAY_S, "y": 366 * DAY_S}
_CALENDAR = {"d": "datetime64[D]", "n": "datetime64[M]", "y": "datetime64[Y]"}


@dataclasses.dataclass(frozen=True, slots=True)
class RowSpan:
    """`count` hours (h), or one day (d), month (n) or year (y).

    Attributes:
      count: 1 or, for `h`, an even number.
      unit: h, d, n or y.
    """

    count: int
    unit: str

    @classmethod
    def parse(cls, text: str) -> RowSpan:
        """Parses a row span such as 1h, 6h, 1d, 1n or 1y.

        Raises:
          ValueError: OpenTSDB does not accept it.
        """
        match = _SPAN.fullmatch(text)
        if match is None or match[2] not in _NOMINAL_S:
            hint = " (m is minutes; a month is n)" if match is not None and match[2] == "m" else ""
            raise ValueError(f"{text!r} is not a row span{hint}: give 1h, an even number of h, 1d, 1n or 1y")
        count, unit = int(match[1]), match[2]
        if count < 1 or (count > 1 and (unit != "h" or count % 2)):
            raise ValueError(f"{text!r}: only h may have a number above 1, which must be even")
        return cls(count, unit)

    def __str__(self) -> str:
        return f"{self.count}{self.unit}"

    @property
    def nominal_s(self) -> int:
        """The seconds by OpenTSDB's rule: a month has 32 days, a year 366."""
        return self.count * _NOMINAL_S[self.unit]

    @property
    def step_s(self) -> int:
        """Rows begin at multiples of these seconds since 1970: their length in h, else whole days."""
        return self.count * HOUR_S if self.unit == "h" else DAY_S

    def bases(self, times_s: Int64s) -> Int64s:
        """int64[n]: the base time of the row of each time.

        >>> RowSpan.parse("1h").bases(np.array([1370532925])).tolist()  # 2013-06-06 15:35:25
        [1370530800]
        >>> RowSpan.parse("1n").bases(np.array([1370532925])).tolist()  # the first of June
        [1370044800]
        """
        if self.unit == "h":
            return times_s - times_s % (self.count * HOUR_S)
        return _seconds(times_s.astype("datetime64[s]").astype(_CALENDAR[self.unit]))

    def bases_between(self, first_s: int, last_s: int) -> Sequence[int]:
        """The base times of the rows from that of one time to that of another, ascending."""
        first, last = self.bases(np.array([first_s, last_s], np.int64)).tolist()
        if self.unit == "h":
            return range(first, last + 1, self.step_s)
        dates = np.array([first, last]).astype("datetime64[s]").astype(_CALENDAR[self.unit])
        bases: list[int] = _seconds(np.arange(dates[0], dates[1] + 1)).tolist()
        return bases


def _seconds(calendar: npt.NDArray[np.datetime64]) -> Int64s:
    return calendar.astype("datetime64[s]").astype(np.int64)
