"""Refused input as dead letters, one JSON object each (docs/reference/dead-letters.md)."""

from __future__ import annotations

import base64
import collections
import errno
import glob
import json
import os
import re
import tempfile
import time
import uuid
from collections.abc import Iterator
from typing import Annotated, BinaryIO, NamedTuple

import apache_beam as beam
import msgspec
from apache_beam.io.filesystems import FileSystems
from apache_beam.io.gcp.pubsub import PubsubMessage, WriteToPubSub
from apache_beam.pvalue import PCollection
from google.cloud.pubsub_v1 import PublisherClient

from timebeam.schema.layouts import Row
from timebeam.schema.points import Envelope, Reason, Rejected, Stage
from timebeam.transforms import metrics
from timebeam.transforms.dead_letters.rejected import ROW_SOURCE, CellTime, row_of

TOPIC = re.compile(r"projects/[^/]+/topics/[^/]+")

LETTER_BYTES = 9_000_000
"""Longest letter sent to a topic; Pub/Sub takes 10 MB, attributes included."""


def to_json(rejected: Rejected, now_ms: int) -> str:
    """One dead letter as a line of JSON; a payload that is not UTF-8 is in base64."""
    letter: dict[str, object] = {
        "reason": rejected.reason.value,
        "message": rejected.message,
        "stage": rejected.stage.value,
        "source": rejected.source,
        "offset": rejected.offset,
        "arrival_ms": rejected.arrival_ms,
        "time_ms": now_ms,
    }
    if rejected.envelope is not None:
        letter["message_id"] = rejected.envelope.message_id
        letter["publish_time_ms"] = rejected.envelope.publish_ms
        letter["attributes"] = dict(rejected.envelope.attributes)
    try:
        letter["payload"] = rejected.payload.decode()
    except UnicodeDecodeError:
        letter["payload_base64"] = base64.b64encode(rejected.payload).decode()
    # JSON's escapes can make half surrogates, which a UTF-8 file cannot hold.
    return json.dumps(letter, ensure_ascii=False).encode(errors="backslashreplace").decode()


class Letter(NamedTuple):
    """A parsed dead letter; `is_complete` unless the payload is only the beginning of the input."""

    rejected: Rejected
    is_complete: bool


_CUT = (Reason.LINE_TOO_LONG, Reason.TRUNCATED_FILE, Reason.CORRUPT_FILE)


_Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class _LetterJson(msgspec.Struct):
    """The fields of a dead letter; others are ignored."""

    reason: Reason
    message: str
    stage: Stage
    source: str
    offset: _Int64
    arrival_ms: CellTime
    payload: str | None = None
    payload_base64: bytes = b""
    payload_is_cut: bool = False
    message_id: str | None = None
    publish_time_ms: CellTime | None = None
    attributes: dict[str, str] | None = None


def from_json(line: str | bytes) -> Letter:
    """Parses a dead letter.

    Raises:
      ValueError: the line is not a dead letter.
    """
    try:
        members = json.loads(line)  # which, unlike msgspec, takes the half surrogates of `to_json`
        letter = msgspec.convert(members, _LetterJson)
    except (ValueError, msgspec.ValidationError, RecursionError) as error:
        raise ValueError(f"not a dead letter: {error}") from error
    if members.get("payload") is None and members.get("payload_base64") is None:
        raise ValueError("not a dead letter: it has no payload")
    rejected = Rejected(
        letter.payload_base64 if letter.payload is None else letter.payload.encode(),
        letter.reason,
        _plain(letter.message),
        letter.stage,
        _plain(letter.source),
        letter.offset,
        letter.arrival_ms,
        _envelope(letter),
    )
    return Letter(rejected, letter.reason not in _CUT and not letter.payload_is_cut)


def _envelope(letter: _LetterJson) -> Envelope | None:
    """The envelope of a Pub/Sub message; None if the input was not a message.

    Raises:
      ValueError: the fields are incomplete.
    """
    if letter.message_id is None:
        return None
    if letter.publish_time_ms is None or letter.attributes is None:
        raise ValueError("not a dead letter: message_id without publish_time_ms and attributes")
    attributes = {_plain(key): _plain(value) for key, value in letter.attributes.items()}
    return Envelope(_plain(letter.message_id), letter.publish_time_ms, attributes)


def _plain(text: str) -> str:
    """A string that UTF-8 can encode: half surrogates become escapes."""
    return text.encode(errors="backslashreplace").decode()


def letter_files(prefix: str) -> list[str]:
    """Local dead-letter files whose names start with `prefix`, sorted."""
    return sorted(glob.glob(glob.escape(prefix) + "-*.jsonl"))


def count_letters(prefix: str) -> dict[str, int]:
    """Number of dead letters per reason in the local files, sorted by reason.

    A runner's counters are approximate; the files are exact.
    """
    reasons: collections.Counter[str] = collections.Counter()
    for path in letter_files(prefix):
        with open(path, "rb") as file:
            reasons.update(line.split(b'"', 4)[3].decode() for line in file)  # `to_json` writes it first
    return dict(sorted(reasons.items()))


def read_row_letters(prefix: str) -> Iterator[tuple[Reason, Row]]:
    """The rows in the local files of dead letters, and why each was refused."""
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
    """Counts refused records by reason, and writes them as dead letters; `Rejected` in.

    Args:
      place: a topic, projects/P/topics/T, or a prefix of file names. Without refusals, no file is created.
      run_ms: time of the run, in ms, written into each dead letter; None for a stream, each of whose dead
        letters has the time of its refusal.
      in_process: whether all steps run in this process: letters are appended to PREFIX-00000-of-00001.jsonl.
        Otherwise a run makes PREFIX-SSSSS-of-NNNNN.jsonl at its end; a stream, and any run in this process
        whose files are not local, PREFIX-UUID.jsonl for each bundle with refusals.
    """

    def __init__(self, place: str, run_ms: int | None, *, in_process: bool = False) -> None:
        super().__init__()
        self._place, self._run_ms, self._in_process = place, run_ms, in_process

    def expand(self, rejected: PCollection[Rejected]) -> object:
        lines = rejected | "AsJson" >> beam.Map(_line, self._run_ms).with_output_types(str)
        if TOPIC.fullmatch(self._place):
            messages = lines | "AsMessage" >> beam.Map(_as_message).with_output_types(PubsubMessage)
            return messages | "Publish" >> WriteToPubSub(self._place, with_attributes=True)
        if self._in_process and FileSystems.get_scheme(self._place) is None:
            return lines | "WriteFiles" >> beam.ParDo(_AppendLettersFn(self._place))
        if self._in_process or self._run_ms is None:
            return lines | "WriteFiles" >> beam.ParDo(_BundleFileFn(self._place))
        return lines | "WriteFiles" >> beam.io.WriteToText(
            self._place, file_name_suffix=".jsonl", skip_if_empty=True
        )


def write_letter(place: str, rejected: Rejected) -> None:
    """Counts and writes one refusal immediately: as a new file, or a message."""
    metrics.count_refused(rejected)
    line = to_json(rejected, int(time.time() * 1000))
    if TOPIC.fullmatch(place):
        letter = _as_message(line)
        PublisherClient().publish(place, letter.data, **letter.attributes).result(timeout=60)
        return
    with FileSystems.create(f"{place}-{uuid.uuid4().hex}.jsonl") as file:
        file.write(line.encode() + b"\n")


def _line(rejected: Rejected, run_ms: int | None) -> str:
    """A line of JSON; counts the refusal."""
    metrics.count_refused(rejected)
    return to_json(rejected, int(time.time() * 1000) if run_ms is None else run_ms)


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


def _as_message(line: str) -> PubsubMessage:
    """A dead letter as a message, with reason and stage as attributes for filters of subscriptions."""
    letter = json.loads(line)
    data = line.encode()
    if len(data) > LETTER_BYTES:
        excess = len(data) - LETTER_BYTES
        field = "payload" if "payload" in letter else "payload_base64"
        letter[field] = letter[field][: max(0, len(letter[field]) - excess) // 4 * 4]
        letter["payload_is_cut"] = True
        data = json.dumps(letter, ensure_ascii=False).encode()
    return PubsubMessage(data, {"reason": letter["reason"], "stage": letter["stage"]})
