"""`timebeam generate`: points of a seed, as programs send them, into a file or a Pub/Sub topic at a rate.

They come in ticks, with all that goes wrong on the way. The same `Load` gives the same ticks on every
machine. What a perfect pipeline stores is `Expected`: of every instant of a series the value sent last.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import gzip
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, NamedTuple, TypeAlias

import grpc
import numpy as np
from google.api_core import exceptions

from timebeam.pipelines.local.pubsub import SubscriptionError, publish_request, publisher
from timebeam.pipelines.options.parameters import UsageError, usage_errors
from timebeam.pipelines.options.parsing import note
from timebeam.schema.bits.times import parse_time

Tags: TypeAlias = "dict[str, str]"

_METRICS = 10
_DATACENTRES = ("lga", "fra", "nrt")
_CORES = 4
_MOST = 1_000_000
_HUNDREDTHS = [f"{n // 100}.{n % 100:02d}" for n in range(10_001)]
_LATEST_AGAIN = 10  # ticks until a duplicate or a correction follows


@dataclasses.dataclass(frozen=True)
class _Mixture:
    """What to send, of whatever time.

    Two series in three hold decimals from 0.00 to 100.00, the third integers from 0 to 1,000,000, all
    of them random, which is the worst case for anything that compresses.

    Attributes:
      points: how many different points; duplicates, corrections and poison come on top.
      series: how many series; each tick has one point of each, the last one may be cut short.
      format: one of FORMATS.
      step: seconds from one tick to the next.
      jitter_ms: a point's time is up to so many ms after its tick; 0 for whole seconds. Below step.
      late, late_steps: share of the points that are sent later, up to so many ticks.
      duplicates: share of the points that are sent again.
      corrections: share of the points that are sent again with another value.
      poison: records that nothing can store, as a share of the points.
      seed: of all that is random.
    """

    points: int
    series: int = 400
    format: str = "opentsdb-json"
    step: int = 1
    jitter_ms: int = 0
    late: float = 0.0
    late_steps: int = 60
    duplicates: float = 0.0
    corrections: float = 0.0
    poison: float = 0.0
    seed: int = 1


@dataclasses.dataclass(frozen=True)
class Load(_Mixture):
    """What to send; `start` is the time of the first tick, in seconds since 1970."""

    start: int = 1_356_998_400


class Frame(NamedTuple):
    """The text of a series' lines before the time, between time and value, and after the value."""

    head: str
    middle: str
    tail: str
    time_first: bool = True

    def line(self, time: str, value: str) -> str:
        """A line with its newline."""
        first, second = (time, value) if self.time_first else (value, time)
        return f"{self.head}{first}{self.middle}{second}{self.tail}"


def tags_of(series: int) -> tuple[str, Tags]:
    """The metric and the tags of the n-th series: ten metrics of each host."""
    host, metric = divmod(series, _METRICS)
    return f"sys.cpu.user{metric}", {
        "host": f"web{host:03d}",
        "dc": _DATACENTRES[host % len(_DATACENTRES)],
        "cpu": str(host % _CORES),
    }


def _json(metric: str, tags: Tags) -> Frame:
    pairs = ",".join(f'"{key}":"{value}"' for key, value in tags.items())
    return Frame(f'{{"metric":"{metric}","timestamp":', ',"value":', f',"tags":{{{pairs}}}}}\n')


def _text(metric: str, tags: Tags) -> Frame:
    pairs = " ".join(f"{key}={value}" for key, value in tags.items())
    return Frame(f"put {metric} ", " ", f" {pairs}\n")


def _influx(metric: str, tags: Tags) -> Frame:
    measurement, _, field = metric.rpartition(".")
    pairs = ",".join(f"{key}={value}" for key, value in sorted(tags.items()))
    return Frame(f"{measurement},{pairs} {field}=", " ", "\n", time_first=False)


FORMATS: dict[str, Callable[[str, Tags], Frame]] = {
    "opentsdb-json": _json,
    "opentsdb-text": _text,
    "influx": _influx,
}

_POISON = {
    "opentsdb-json": (
        '{"metric":"sys.cpu.user0","timestamp":1356998400,"value":"NaN","tags":{"host":"web000"}}\n',
        '{"metric":"sys.cpu.user0","timestamp":1356998400,"value":1,"tags":{}}\n',
        '{"metric":"sys.cpu.user0","timestamp":\n',
    ),
    "opentsdb-text": (
        "put sys.cpu.user0 1356998400 1,5 host=web000\n",
        "put sys.cpu.user0 1356998400 1 host\n",
        "put sys.cpu.user0\n",
    ),
    "influx": ("cpu,host=web000 user=\n", 'cpu,host=web000 user="idle" 1356998400000000000\n', "cpu\n"),
}


class Expected:
    """What a perfect pipeline stores of the lines that were sent."""

    def __init__(self) -> None:
        self.values: dict[tuple[int, int], str] = {}
        """Text of the value by (number of the series, time in ms)."""
        self.rejected = 0

    def lines(self) -> Iterator[str]:
        """CSV as of `timebeam query`: metric,tags,timestamp_ms,value, sorted by series and time."""
        yield "metric,tags,timestamp_ms,value\n"
        named = [(*tags_of(series), time_ms, value) for (series, time_ms), value in self.values.items()]
        for metric, tags, time_ms, value in sorted(
            named, key=lambda point: (point[0], sorted(point[1].items()), point[2])
        ):
            pairs = " ".join(f"{key}={tag}" for key, tag in sorted(tags.items()))
            yield f"{metric},{pairs},{time_ms},{_read_back(value)}\n"


def _read_back(value: str) -> str:
    """The text of a number as `timebeam query` prints it."""
    return repr(float(value)) if "." in value else value.removesuffix("i")


class _Sent(NamedTuple):
    series: int
    time_ms: int
    value: str


class Generator:
    """Ticks of lines of one load."""

    def __init__(self, load: Load, expected: Expected | None = None) -> None:
        """Fills `expected`, if there is one, as the ticks are taken; it costs memory for every point.

        Raises:
          ValueError: something of the load makes no sense.
        """
        if load.format not in FORMATS:
            raise ValueError(f"unknown format {load.format!r}; one of {', '.join(FORMATS)}")
        if not 0 <= load.jitter_ms < load.step * 1000:
            raise ValueError("--jitter-ms must be less than the step, or two points could have the same time")
        self._load, self._expected = load, expected
        self._frames = [FORMATS[load.format](*tags_of(number)) for number in range(load.series)]
        # RandomState and not default_rng: only its stream is the same in every version of numpy.
        self._random = np.random.RandomState(load.seed)
        self._repeats: dict[int, list[_Sent]] = collections.defaultdict(list)

    def ticks(self) -> Iterator[list[str]]:
        """The lines of one tick after the other, each with its newline."""
        load = self._load
        written = tick = 0
        while written < load.points or self._repeats:
            size = min(load.series, load.points - written)
            lines = self._first_time(tick, size) if size else []
            written += size
            if not size:
                tick = min(self._repeats)
            for sent in self._repeats.pop(tick, []):
                lines.append(self._line(sent))
            lines += self._poison(size)
            yield lines
            tick += 1

    def _first_time(self, tick: int, size: int) -> list[str]:
        """The lines of the points of a tick, but those that are sent later."""
        load, random = self._load, self._random
        at_s = load.start + tick * load.step
        values = self._values(size)
        times_ms = [at_s * 1000] * size
        if load.jitter_ms:
            times_ms = (at_s * 1000 + random.randint(0, load.jitter_ms + 1, size, np.int64)).tolist()
        later = self._chosen(load.late, size)
        for number in self._chosen(load.duplicates, size):
            self._plan(tick, _LATEST_AGAIN, _Sent(number, times_ms[number], values[number]))
        corrected = self._chosen(load.corrections, size)
        corrected_values = self._values(size) if corrected else []
        for number in corrected:
            self._plan(tick, _LATEST_AGAIN, _Sent(number, times_ms[number], corrected_values[number]))
        for number in later:
            self._plan(tick, load.late_steps, _Sent(number, times_ms[number], values[number]))
        if self._expected is None and not later and not load.jitter_ms:
            time = self._time_text(at_s * 1000)
            return [frame.line(time, value) for frame, value in zip(self._frames, values, strict=False)]
        later_numbers = set(later)
        return [
            self._line(_Sent(number, times_ms[number], values[number]))
            for number in range(size)
            if number not in later_numbers
        ]

    def _line(self, sent: _Sent) -> str:
        """The line of a point; from now on it is what is expected of its instant."""
        if self._expected is not None:
            self._expected.values[sent.series, sent.time_ms] = sent.value
        return self._frames[sent.series].line(self._time_text(sent.time_ms), sent.value)

    def _time_text(self, time_ms: int) -> str:
        if self._load.format == "influx":
            return f"{time_ms}000000"
        return str(time_ms if self._load.jitter_ms else time_ms // 1000)

    def _values(self, size: int) -> list[str]:
        """Random values of the first series, as text."""
        decimals = self._random.randint(0, len(_HUNDREDTHS), size, np.int64).tolist()
        integers = self._random.randint(0, _MOST + 1, size, np.int64).tolist()
        suffix = "i" if self._load.format == "influx" else ""
        return [f"{integers[i]}{suffix}" if i % 3 == 2 else _HUNDREDTHS[decimals[i]] for i in range(size)]

    def _chosen(self, share: float, size: int) -> list[int]:
        if not share:
            return []
        return np.flatnonzero(self._random.random_sample(size) < share).tolist()

    def _plan(self, tick: int, most: int, sent: _Sent) -> None:
        self._repeats[tick + int(self._random.randint(1, most + 1))].append(sent)

    def _poison(self, size: int) -> list[str]:
        if not self._load.poison:
            return []
        kinds = _POISON[self._load.format]
        count = int(self._random.binomial(size, self._load.poison))
        if self._expected is not None:
            self._expected.rejected += count
        return [kinds[i] for i in self._random.randint(0, len(kinds), count).tolist()]


_BYTES_A_REQUEST = 4_000_000
_MESSAGES_A_REQUEST = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerateOptions(_Mixture):
    """A load, and where it is sent."""

    start: str
    output: str | None
    topic: str | None
    rate: float | None
    points_per_message: int
    expect: str | None
    summary: str


def run(options: GenerateOptions, now_ms: int) -> int:
    """Sends everything, with a line about it on standard error."""
    if bool(options.output) == bool(options.topic):
        raise UsageError("give one of --output and --topic")
    expected = Expected() if options.expect else None
    load = load_of(options, now_ms)
    for path in (options.output, options.expect):
        if path and not os.path.isdir(os.path.dirname(os.path.abspath(path))):
            raise FileNotFoundError(f"there is no folder for {path}")
    with usage_errors():
        ticks = Generator(load, expected).ticks()
    started = time.monotonic()
    if options.topic:
        lines = publish(ticks, options.topic, options.points_per_message, options.rate)
    else:
        lines = _write(ticks, options.output or "-")
    seconds = time.monotonic() - started
    figures: dict[str, float] = {"lines": lines, "seconds": seconds}
    if expected is not None and options.expect:
        figures |= {"points": len(expected.values), "rejected": expected.rejected}
        with open(options.expect, "w", encoding="utf-8") as file:
            file.writelines(expected.lines())
    if options.summary == "json":
        print(json.dumps(figures), file=sys.stderr if options.output == "-" else sys.stdout)
        return 0
    if expected is not None:
        print(
            f"a correct pipeline stores {len(expected.values):,} points and rejects {expected.rejected:,}",
            file=sys.stderr,
        )
    note(f"{lines:,} lines in {seconds:.1f} s, {lines / seconds:,.0f}/s")
    return 0


def load_of(options: GenerateOptions, now_ms: int) -> Load:
    """The load that the options describe; raises UsageError if the start is no time."""
    try:
        start = parse_time(options.start, now_ms) // 1000
    except ValueError as error:
        raise UsageError(f"--start: {error}") from error
    mixture = {field.name: getattr(options, field.name) for field in dataclasses.fields(_Mixture)}
    return Load(**mixture, start=start)


def _write(ticks: Iterable[list[str]], path: str) -> int:
    """Writes the lines; how many."""
    count = 0
    with _opened(path) as file:
        for lines in ticks:
            file.write("".join(lines).encode())
            count += len(lines)
    return count


@contextlib.contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    if path == "-":
        yield sys.stdout.buffer
        return
    with open(path, "wb") as file:
        if path.endswith(".gz"):
            # No name and no time in the file: the same bytes for the same seed.
            with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
                yield packed  # type: ignore[misc]
        else:
            yield file


def publish(ticks: Iterable[list[str]], topic: str, per_message: int, rate: float | None) -> int:
    """Publishes the lines, so many in each message; returns how many.

    Args:
      rate: lines in a second; None for as many as Pub/Sub takes.

    A tick begins when all of the one before is published, and in a later millisecond: a correction
    has a later publish time than what it corrects.
    """
    client = publisher()
    count, began = 0, time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for lines in ticks:
            requests = list(_requests(topic, lines, per_message))
            try:
                list(pool.map(lambda request: client.transport.publish(request), requests))
            except (grpc.RpcError, exceptions.GoogleAPICallError) as error:
                why = error.details() if isinstance(error, grpc.Call) else str(error)
                raise SubscriptionError(f"cannot publish to {topic}: {why}") from error
            count += len(lines)
            pause = 0.002
            if rate:
                pause = max(pause, began + count / rate - time.monotonic())
            time.sleep(pause)
    return count


def _requests(topic: str, lines: Sequence[str], per_message: int) -> Iterator[object]:
    """Publish requests of a bounded size."""
    payloads = [
        "".join(lines[first : first + per_message]).rstrip("\n").encode()
        for first in range(0, len(lines), per_message)
    ]
    request_payloads: list[bytes] = []
    size = 0
    for payload in payloads:
        if request_payloads and (
            size + len(payload) > _BYTES_A_REQUEST or len(request_payloads) >= _MESSAGES_A_REQUEST
        ):
            yield publish_request(topic, [(data, {}) for data in request_payloads])
            request_payloads, size = [], 0
        request_payloads.append(payload)
        size += len(payload)
    if request_payloads:
        yield publish_request(topic, [(data, {}) for data in request_payloads])
