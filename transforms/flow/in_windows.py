"""Elements gathered and rejected in any windowing, with their windows and timestamps."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import apache_beam as beam
from apache_beam.transforms.window import SlidingWindows, WindowFn
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from timebeam.schema.core.points import LAST_MILLISECOND
from timebeam.schema.core.rejections import Rejected


def check_one_window(windows: WindowFn) -> None:
    """Raises ValueError if a windowing may put one element into several windows.

    Each of them is an element of its own for Beam: the point would be stored, and appended, several times.
    """
    advice = (
        "which would be stored several times: write it before this WindowInto, or put "
        "WindowInto(GlobalWindows()) behind the aggregation whose results are written"
    )
    name = type(windows).__name__
    if isinstance(windows, SlidingWindows):
        if windows.size > windows.period:
            raise ValueError(f"WritePoints: {name} puts a point into several windows, {advice}")
        return
    try:
        assigned = list(windows.assign(WindowFn.AssignContext(Timestamp(0))))
    except Exception as error:
        raise ValueError(
            f"WritePoints: {name} may put a point into several windows, {advice} ({error})"
        ) from error
    if len(assigned) > 1:
        raise ValueError(f"WritePoints: {name} puts a point into several windows, {advice}")


def own_times() -> beam.PTransform[Any, Any]:
    """Gives rejections the timestamps of their elements, which are their arrivals, in the same windows."""
    return beam.ParDo(_OwnTimesFn()).with_output_types(Rejected)


class _OwnTimesFn(beam.DoFn):
    """`Rejected` in and out. In one window at a time: what `process` yields comes out once for each."""

    def process(
        self,
        rejected: Rejected,
        time: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
    ) -> Iterator[Rejected | WindowedValue]:
        if rejected.arrival_ms < 0 or time <= MIN_TIMESTAMP:
            yield rejected
        else:
            yield WindowedValue(rejected, Timestamp(micros=rejected.arrival_ms * 1000), (window,))


Item = TypeVar("Item")


class GatherInWindowsFn(beam.DoFn, Generic[Item]):
    """Elements in; out comes what a subclass makes of those of the same windows in a bundle.

    It comes out in these windows, with the timestamp of the earliest element.

    Attributes:
      most, most_weight: items, and their weight, that are gathered.
    """

    most: int
    most_weight: int

    def __init__(self, made_ms: int) -> None:
        """Takes the arrival of elements without a timestamp, in ms since 1970."""
        self._made_ms = made_ms

    def made(self, items: list[Item]) -> Any:
        """What comes out for items of the same windows."""
        raise NotImplementedError

    def arrival_ms(self, windows: WindowedValue) -> int:
        """The arrival of an element, in ms since 1970."""
        arrival_ms = windows.timestamp.micros // 1000
        return arrival_ms if 0 < arrival_ms <= LAST_MILLISECOND else self._made_ms

    def start_bundle(self) -> None:
        self._items = collections.defaultdict[tuple[Any, ...], list[Item]](list)
        self._first: dict[tuple[Any, ...], Timestamp] = {}
        self._count = self._weight = 0

    def add(self, item: Item, weight: int, windows: WindowedValue) -> Iterator[WindowedValue]:
        """Adds an item; what comes out if there are enough."""
        key = tuple(windows.windows)
        self._items[key].append(item)
        self._first[key] = min(self._first.get(key, windows.timestamp), windows.timestamp)
        self._count += 1
        self._weight += weight
        if self._count >= self.most or self._weight >= self.most_weight:
            yield from self.finish_bundle()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for key, items in self._items.items():
            yield WindowedValue(self.made(items), self._first[key], key)
        self.start_bundle()
