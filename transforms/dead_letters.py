"""Refused input as JSON lines: nothing is dropped without a trace (docs/dead-letters.md)."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable

import apache_beam as beam
from apache_beam.pvalue import PCollection

from schema.points import Rejected
from transforms import metrics


def to_json(rejected: Rejected, now_ms: int) -> str:
    """One dead letter as a line of JSON; a payload that is not UTF-8 stands in base64."""
    letter: dict[str, object] = {
        "reason": rejected.reason.value,
        "message": rejected.message,
        "stage": rejected.stage.value,
        "source": rejected.source,
        "offset": rejected.offset,
        "time_ms": now_ms,
    }
    try:
        letter["payload"] = rejected.payload.decode()
    except UnicodeDecodeError:
        letter["payload_base64"] = base64.b64encode(rejected.payload).decode()
    # Half surrogates, which JSON's escapes can make, are no text that a file can hold.
    return json.dumps(letter, ensure_ascii=False).encode(errors="backslashreplace").decode()


def payload(letter: dict[str, str]) -> bytes:
    """The original bytes of a dead letter that was read back."""
    if "payload" in letter:
        return letter["payload"].encode()
    return base64.b64decode(letter["payload_base64"])


class _LetterFn(beam.DoFn):
    def __init__(self, run_ms: int) -> None:
        self._run_ms = run_ms

    def process(self, rejected: Rejected) -> Iterable[str]:
        metrics.count(f"refused/{rejected.reason.value}")
        yield to_json(rejected, self._run_ms)


class WriteDeadLetters(beam.PTransform):  # type: ignore[type-arg]
    """Counts refused records by reason and writes them to files; none if there is nothing to write.

    Args:
      prefix: files are named PREFIX-SSSSS-of-NNNNN.jsonl.
      run_ms: time of the run, in ms, written into each letter.
    """

    def __init__(self, prefix: str, run_ms: int) -> None:
        super().__init__()
        self._prefix, self._run_ms = prefix, run_ms

    def expand(self, rejected: PCollection[Rejected]) -> object:
        """See the class."""
        return (
            rejected
            | "AsJson" >> beam.ParDo(_LetterFn(self._run_ms)).with_output_types(str)
            | "WriteFiles" >> beam.io.WriteToText(self._prefix, file_name_suffix=".jsonl", skip_if_empty=True)
        )
