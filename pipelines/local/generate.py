"`timebeam generate`: random points of a seed into a file, or into a Pub/Sub topic at a rate."

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import gzip
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

import grpc
from google.api_core import exceptions

from timebeam.pipelines.local.generator import Expected, Generator, Load
from timebeam.pipelines.local.pubsub import SubscriptionError, publish_request, publisher
from timebeam.pipelines.options.parameters import UsageError
from timebeam.pipelines.options.parsing import note
from timebeam.schema.bits.times import parse_time

_BYTES_A_REQUEST = 4_000_000
_MESSAGES_A_REQUEST = 1000


def run(options: argparse.Namespace) -> int:
    """Sends everything, with a line about it on standard error."""
    if bool(options.output) == bool(options.topic):
        raise UsageError("give one of --output and --topic")
    expected = Expected() if options.expect else None
    load = load_of(options)
    for path in (options.output, options.expect):
        if path and not os.path.isdir(os.path.dirname(os.path.abspath(path))):
            raise FileNotFoundError(f"there is no folder for {path}")
    try:
        ticks = Generator(load, expected).ticks()
    except ValueError as error:
        raise UsageError(str(error)) from error
    started = time.monotonic()
    lines = publish(ticks, options) if options.topic else _write(ticks, options.output)
    seconds = time.monotonic() - started
    figures: dict[str, float] = {"lines": lines, "seconds": seconds}
    if expected is not None:
        figures |= {"points": len(expected.values), "refused": expected.refused}
        with open(options.expect, "w", encoding="utf-8") as file:
            file.writelines(expected.lines())
    if options.summary == "json":
        print(json.dumps(figures), file=sys.stderr if options.output == "-" else sys.stdout)
        return 0
    if expected is not None:
        print(
            f"a correct pipeline stores {len(expected.values):,} points and refuses {expected.refused:,}",
            file=sys.stderr,
        )
    note(f"{lines:,} lines in {seconds:.1f} s, {lines / seconds:,.0f}/s")
    return 0


def load_of(options: argparse.Namespace) -> Load:
    """The load that the options describe.

    Raises:
      UsageError: the start is no time.
    """
    try:
        start = parse_time(options.start, int(time.time() * 1000)) // 1000
    except ValueError as error:
        raise UsageError(f"--start: {error}") from error
    return Load(
        options.points,
        options.series,
        options.format,
        options.step,
        start,
        options.jitter_ms,
        options.late,
        options.late_steps,
        options.duplicates,
        options.corrections,
        options.poison,
        options.seed,
    )


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


def publish(ticks: Iterable[list[str]], options: argparse.Namespace) -> int:
    """Publishes the lines at the rate asked for; how many.

    A tick begins when all of the one before is published, and in a later millisecond: a correction
    has a later publish time than what it corrects.
    """
    client = publisher()
    count, began = 0, time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for lines in ticks:
            requests = list(_requests(options.topic, lines, options.points_per_message))
            try:
                list(pool.map(lambda request: client.transport.publish(request), requests))
            except (grpc.RpcError, exceptions.GoogleAPICallError) as error:
                why = error.details() if isinstance(error, grpc.Call) else str(error)
                raise SubscriptionError(f"cannot publish to {options.topic}: {why}") from error
            count += len(lines)
            pause = 0.002
            if options.rate:
                pause = max(pause, began + count / options.rate - time.monotonic())
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
