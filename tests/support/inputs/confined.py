"""Parsers in children that have little time and memory, so that a crash is seen and costs nothing.

`python -m tests.support.inputs.confined` imports once, and forks a child for each text that it is sent.
"""

from __future__ import annotations

import functools
import os
import pickle
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from timebeam.schema.core.rejections import Rejected
from timebeam.schema.formats import Framing, Message, message_format
from timebeam.schema.stores.declared.records import read_avro, read_csv, read_json
from timebeam.transforms.input.files import blocks, match, spans

MEMORY = 512 << 20
SECONDS = 60
"""Of the processor, for one text."""

_RECORDS = {"json": read_json, "csv": read_csv, "avro": read_avro}


class Outcome(NamedTuple):
    """What a child did.

    Attributes:
      code: its exit code; negative for a signal.
      points: how many points, edits of annotations or records the text held.
      rejected: the reasons and payloads of rejections, in their order.
    """

    code: int
    points: int
    rejected: list[tuple[str, bytes]]


def parsed(name: str, options: dict[str, Any], text: bytes, memory: int = MEMORY) -> Outcome:
    """What becomes of a text in a child; see `SECONDS`.

    Args:
      name: of a message format; `records` has the option `encoding`. `parquet-file` is an input file.
      memory: bytes of address space beside those after the imports, for what becomes of the text.
    """
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    pickle.dump((name, options, text, memory), server.stdin)
    server.stdin.flush()
    answer = pickle.load(server.stdout)
    if isinstance(answer, int):
        return Outcome(answer, -1, [])
    return Outcome(pickle.load(server.stdout), *answer)


@functools.cache
def _server() -> subprocess.Popen[bytes]:
    """The process that forks; it ends with its standard input."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.inputs.confined"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )


def _serve(cases: BinaryIO, answers: BinaryIO) -> None:
    """Answers each case with what its child found, if it came so far, and the child's exit code."""
    while True:
        try:
            case = pickle.load(cases)
        except EOFError:
            return
        child = os.fork()
        if child == 0:
            answers.write(pickle.dumps(_outcome(*case)))
            answers.flush()
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        answers.write(pickle.dumps(code))
        answers.flush()


def _outcome(
    name: str, options: dict[str, Any], text: bytes, memory: int
) -> tuple[int, list[tuple[str, bytes]]]:
    """(points, rejections) of a text, within limits."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + memory
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    try:
        message = Message(text, 1_700_000_000_000, "text")
        if name == "records":
            batch, rejected = _RECORDS[options["encoding"]](message)
            return len(batch), [(one.reason.value, one.payload) for one in rejected]
        if name == "parquet-file":
            return _of_file(options, text)
        outcome = list(message_format(name, options).parse_all([message]))
        points = sum(len(one.batch) + len(one.annotations) for one in outcome)
        return points, [(one.reason.value, one.payload) for some in outcome for one in some.rejected]
    except BaseException as error:
        sys.stderr.write(f"{name} {options}: {error!r}\n")
        os._exit(1)


def _of_file(options: dict[str, Any], text: bytes) -> tuple[int, list[tuple[str, bytes]]]:
    """(points, rejections) of a Parquet file, as an ingest reads it."""
    points, rejected = 0, []
    reader = message_format("parquet", options)
    with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        file.write(text)
        file.flush()
        for span in spans(match([file.name])[0], Framing.PARQUET):
            for block in blocks(span, Framing.PARQUET):
                if isinstance(block, Rejected):
                    rejected.append((block.reason.value, block.payload))
                else:
                    outcome = reader.parse(block)
                    points += len(outcome.batch)
                    rejected += [(one.reason.value, one.payload) for one in outcome.rejected]
    return points, rejected


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
