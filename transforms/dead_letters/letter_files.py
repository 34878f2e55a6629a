"""Where dead letters are stored: files, one letter each line, or a topic."""

from __future__ import annotations

import collections
import errno
import glob
import os
import re
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.io.gcp.pubsub import PubsubMessage, WriteToPubSub, parse_topic
from apache_beam.pvalue import PCollection
from google.cloud.pubsub_v1 import PublisherClient

from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.core.rows import Row
from timebeam.transforms.dead_letters.letter import ROW_SOURCE, from_json, letters, row_of, to_json
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.steps import BufferedDoFn

TOPIC = re.compile(r"projects/[^/]+/topics/[^/]+")

_COUNTED = re.compile(rb'\{"reason": "([a-z-]+)"(?:, "points": (\d+))?')


def has_project_id(topic: str) -> bool:
    """Whether the project of a topic has a name as Beam requires: `local`, of an emulator, is too short."""
    try:
        parse_topic(topic)
    except ValueError:
        return False
    return True


def letter_files(prefix: str) -> list[str]:
    """Local dead-letter files whose names start with `prefix`, sorted."""
    return sorted(glob.glob(glob.escape(prefix) + "-*.jsonl"))


def count_letters(prefix: str) -> dict[str, int]:
    """Number of rejected points per reason in the local files, sorted by reason.

    A runner's counters are approximate; the files are exact.
    """
    reasons: collections.Counter[str] = collections.Counter()
    for path in letter_files(prefix):
        with open(path, "rb") as file:
            for counted in map(_COUNTED.match, file):
                if counted is not None:
                    reasons[counted[1].decode()] += int(counted[2] or 1)
    return dict(sorted(reasons.items()))


def read_row_letters(prefix: str) -> Iterator[tuple[Reason, Row]]:
    """The rows in the local files of dead letters, and why each was rejected."""
    for path in letter_files(prefix):
        with open(path, "rb") as file:
            for line in file:
                if ROW_SOURCE.encode() in line:
                    rejected = from_json(line).rejected
                    if rejected.source.startswith(ROW_SOURCE):
                        yield rejected.reason, row_of(rejected.payload)


def check_writable(prefix: str) -> None:
    """Raises OSError if no file with this prefix can be created; leaves nothing behind.

    It creates and removes a folder: permissions alone do not decide (a superuser, a read-only disk). Of a
    place that is not local it only checks that there is such a file system.

    Args:
      prefix: a path or URL; missing local folders are created later.
    """
    if "://" in prefix:
        try:
            FileSystems.get_filesystem(prefix)
        except ValueError as error:
            raise OSError(errno.EINVAL, f"no file system is called {prefix.partition('://')[0]}") from error
        return
    folder = os.path.dirname(os.path.abspath(prefix))
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    os.rmdir(tempfile.mkdtemp(prefix="timebeam-", dir=folder))


class WriteDeadLetters(beam.PTransform):  # type: ignore[type-arg]
    """Counts rejected records by reason, and writes them as dead letters; `Rejected` in.

    Args:
      place: a topic, projects/P/topics/T, or a prefix of file names. Without rejections, no file is created.
      run_ms: time of the run, in ms, written into each dead letter; None for a stream, each of whose dead
        letters has the time of its rejection.
      in_process: whether all steps run in this process: letters are appended to PREFIX-00000-of-00001.jsonl.
        Otherwise a run makes PREFIX-SSSSS-of-NNNNN.jsonl at its end; a stream, and any run in this process
        whose files are not local, PREFIX-UUID.jsonl for each bundle with rejections.
    """

    def __init__(self, place: str, run_ms: int | None, *, in_process: bool = False) -> None:
        super().__init__()
        self._place, self._run_ms, self._in_process = place, run_ms, in_process

    def expand(self, rejected: PCollection[Rejected]) -> object:
        if TOPIC.fullmatch(self._place):
            messages = rejected | "AsMessages" >> beam.FlatMap(_messages, self._run_ms).with_output_types(
                PubsubMessage
            )
            if has_project_id(self._place):
                return messages | "Publish" >> WriteToPubSub(self._place, with_attributes=True)
            return messages | "Publish" >> beam.ParDo(_PublishFn(self._place))
        lines = rejected | "AsJson" >> beam.Map(_line, self._run_ms).with_output_types(str)
        if self._in_process and FileSystems.get_scheme(self._place) is None:
            return lines | "WriteFiles" >> beam.ParDo(_AppendLettersFn(self._place))
        if self._in_process or self._run_ms is None:
            return lines | "WriteFiles" >> beam.ParDo(_BundleFileFn(self._place))
        return lines | "WriteFiles" >> beam.io.WriteToText(
            self._place, file_name_suffix=".jsonl", skip_if_empty=True
        )


def write_letter(place: str, rejected: Rejected) -> None:
    """Counts and writes one rejection immediately: as a new file, or as messages."""
    if TOPIC.fullmatch(place):
        client = PublisherClient()
        published = [
            client.publish(place, message.data, **message.attributes) for message in _messages(rejected, None)
        ]
        for each in published:
            each.result(timeout=60)
        return
    with FileSystems.create(f"{place}-{uuid.uuid4().hex}.jsonl") as file:
        file.write(_line(rejected, None).encode() + b"\n")


def _line(rejected: Rejected, run_ms: int | None) -> str:
    """A line of JSON; counts the rejection."""
    metrics.count_rejected(rejected)
    return to_json(rejected, _time_ms(run_ms))


def _messages(rejected: Rejected, run_ms: int | None) -> Iterator[PubsubMessage]:
    """A dead letter as messages, with reason and stage as attributes for filters; counts the rejection."""
    metrics.count_rejected(rejected)
    for line in letters(rejected, _time_ms(run_ms)):
        yield PubsubMessage(line.encode(), {"reason": rejected.reason.value, "stage": rejected.stage.value})


def _time_ms(run_ms: int | None) -> int:
    """The time in a letter: of the run, or now."""
    return int(time.time() * 1000) if run_ms is None else run_ms


class _PublishFn(BufferedDoFn[PubsubMessage]):
    """Messages in, published before the bundle ends."""

    most = 1_000

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def setup(self) -> None:
        self._client = PublisherClient()

    def handle(self, messages: list[PubsubMessage]) -> Iterable[None]:
        for published in [
            self._client.publish(self._topic, message.data, **message.attributes) for message in messages
        ]:
            published.result(timeout=60)
        return ()


class _BundleFileFn(beam.DoFn):
    """Lines in, written into one new file for each bundle, complete before the bundle ends."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._path = ""
        self._file: BinaryIO | None = None

    def start_bundle(self) -> None:
        self._file = None

    def process(self, line: str) -> None:
        if self._file is None:
            self._path = f"{self._prefix}-{uuid.uuid4().hex}.jsonl"
            self._file = FileSystems.create(self._path + ".part")
        self._file.write(line.encode() + b"\n")

    def finish_bundle(self) -> None:
        if self._file is not None:
            self._file.close()
            FileSystems.rename([self._path + ".part"], [self._path])
            self._file = None


class _AppendLettersFn(beam.DoFn):
    """Lines in, appended to one local file, each at once and whole."""

    def __init__(self, prefix: str) -> None:
        self._path = f"{prefix}-00000-of-00001.jsonl"
        self._file: BinaryIO | None = None

    def process(self, line: str) -> None:
        if self._file is None:
            os.makedirs(os.path.dirname(os.path.abspath(self._path)), exist_ok=True)
            self._file = open(self._path, "ab")  # noqa: SIM115
        self._file.write(line.encode() + b"\n")
        self._file.flush()

    def finish_bundle(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
