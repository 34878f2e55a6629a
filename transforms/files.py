"""Blocks of whole records out of files: the bounded source of every pipeline.

A plain file of lines is cut every `BLOCK_BYTES`; a block holds the lines that begin in its part, so
that each line is in exactly one block, however the parts are spread over workers. A compressed file, or
one of another framing, is one part, read from its start. Any file system that Beam knows.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple, Protocol

import apache_beam as beam
from apache_beam.io.filesystem import CompressionTypes, FileMetadata
from apache_beam.io.filesystems import FileSystems
from apache_beam.pvalue import DoOutputsTuple, PBegin

from schema.messages import Framing, Message
from schema.points import Reason, Rejected, Stage
from transforms import metrics
from transforms.avro_cutter import AvroCutter
from transforms.decompress import DamagedError, TruncatedError, content, is_compressed
from transforms.rejected import RejectedOutput, refuse, refusing

BLOCK_BYTES = 4 << 20
"""Size of a block; its last line may reach beyond."""

LINE_BYTES = 1 << 20
"""Longest line; a longer one is refused, of its bytes the first `LINE_BYTES` are kept."""

_PARTS_A_READ = 16  # blocks read one after the other by one worker, so that a file is opened seldom


class FilePart(NamedTuple):
    """The records of a file that begin from byte `start` on and before byte `end`.

    Attributes:
      end: -1 for a file that is read from its start to its end.
      modified_ms: modification time of the file, which becomes the arrival of its points.
    """

    path: str
    start: int
    end: int
    modified_ms: int


def match(patterns: Iterable[str]) -> list[FileMetadata]:
    """The files that match any of the patterns, each once, by path; folders are passed over.

    Raises:
      FileNotFoundError: a pattern matches no file, or is of a file system that is not at hand.
    """
    found: dict[str, FileMetadata] = {}
    for pattern in patterns:
        try:
            # Beam finds no file by a pattern without a folder.
            named = pattern if "/" in pattern else os.path.join(os.curdir, pattern)
            matched = FileSystems.match([named])[0].metadata_list
        except ValueError as error:  # no such file system, or its dependency is not installed
            raise FileNotFoundError(f"{pattern}: {error}") from error
        files = [file for file in matched if not os.path.isdir(file.path)]
        if not files:
            raise FileNotFoundError(f"no file matches {pattern}")
        found.update((file.path, file) for file in files)
    return [found[path] for path in sorted(found)]


class _Cutter(Protocol):
    """Cuts a stream of bytes into blocks of whole records; `rest`, from `offset` on, is not handed on."""

    @property
    def rest(self) -> bytes: ...

    @property
    def offset(self) -> int: ...

    def add(self, data: bytes) -> Iterator[Message | Rejected]: ...

    def finish(self) -> Iterator[Message | Rejected]: ...


def parts(file: FileMetadata, framing: Framing = Framing.LINES) -> Iterator[FilePart]:
    """The parts of a file that may be read apart from each other.

    Raises:
      ValueError: the file system does not tell the modification time, without which a later
        correction could not win.
    """
    modified_ms = int(file.last_updated_in_seconds * 1000)
    if modified_ms <= 0:
        raise ValueError(f"{file.path}: its file system gives no modification time")
    if is_compressed(file.path) or framing is not Framing.LINES:
        yield FilePart(file.path, 0, -1, modified_ms)
        return
    step = BLOCK_BYTES * _PARTS_A_READ
    for start in range(0, file.size_in_bytes, step):
        yield FilePart(file.path, start, min(start + step, file.size_in_bytes), modified_ms)


def blocks(part: FilePart, framing: Framing = Framing.LINES) -> Iterator[Message | Rejected]:
    """The blocks of a part, and the refusal of what of it cannot be read."""
    is_avro = framing is Framing.AVRO
    with FileSystems.open(part.path, compression_type=CompressionTypes.UNCOMPRESSED) as file:
        if part.end >= 0:
            yield from _plain_blocks(part, file)
            return
        cutter = AvroCutter(part.path, part.modified_ms, BLOCK_BYTES) if is_avro else _LineCutter(part)
        yield from _whole_file_blocks(part, file, cutter)


def _plain_blocks(part: FilePart, file: BinaryIO) -> Iterator[Message | Rejected]:
    """Blocks of the lines that begin in a part of a plain file."""
    cutter = _LineCutter(part)
    if part.start > 0:
        file.seek(part.start - 1)
        skipped = _skip_line(file, part.end - part.start + 1)
        if skipped is None:
            return
        cutter.offset = part.start - 1 + skipped
        file.seek(cutter.offset)
    while cutter.offset + len(cutter.rest) < part.end:
        want = min(BLOCK_BYTES, part.end - cutter.offset - len(cutter.rest))
        data = file.read(want)
        if not data:
            break
        yield from cutter.add(data)
    # The last line of the part may end behind it.
    while cutter.open_line:
        data = file.read(1 << 16)
        end = data.find(b"\n") + 1
        yield from cutter.add(data[:end] if end else data)
        if end or not data:
            break
    yield from cutter.finish()


def _whole_file_blocks(part: FilePart, file: BinaryIO, cutter: _Cutter) -> Iterator[Message | Rejected]:
    """Blocks of a file read from its start; what is readable of a truncated or damaged one is kept."""
    try:
        for data in content(part.path, file, BLOCK_BYTES):
            yield from cutter.add(data)
        yield from cutter.finish()
    except (TruncatedError, DamagedError) as error:
        truncated = isinstance(error, TruncatedError)
        reason = Reason.TRUNCATED_FILE if truncated else Reason.CORRUPT_FILE
        message = f"{error}: what ends before byte {cutter.offset} is stored; the rest is not"
        yield Rejected(cutter.rest[:LINE_BYTES], reason, message, Stage.READ, part.path, cutter.offset)


def _skip_line(file: BinaryIO, limit: int) -> int | None:
    """Bytes up to and with the next newline; None if there is none within `limit` bytes."""
    seen = 0
    while seen < limit:
        data = file.read(min(1 << 16, limit - seen))
        if not data:
            return None
        at = data.find(b"\n")
        if at >= 0:
            return seen + at + 1
        seen += len(data)
    return None


class _LineCutter:
    """Cuts a stream of bytes into blocks of whole lines, and leaves out lines that are too long."""

    def __init__(self, part: FilePart) -> None:
        self._part = part
        self.offset = part.start
        """Where `rest` begins in the file."""
        self.rest = b""
        """The beginning of a line whose end has not come."""
        self._dropping = False

    @property
    def open_line(self) -> bool:
        """Whether a line has begun and not ended."""
        return bool(self.rest) or self._dropping

    def add(self, data: bytes) -> Iterator[Message | Rejected]:
        """The block of the lines that end in `data`."""
        if self._dropping:
            end = data.find(b"\n") + 1
            self.offset += end or len(data)
            if not end:
                return
            self._dropping = False
            data = data[end:]
        text = self.rest + data if self.rest else data
        end = text.rfind(b"\n") + 1
        self.rest = text[end:]
        yield from self._block(text[:end] if end < len(text) else text)
        if len(self.rest) > LINE_BYTES:
            yield self._too_long(self.rest[:LINE_BYTES], self.offset)
            self.offset += len(self.rest)
            self.rest = b""
            self._dropping = True

    def finish(self) -> Iterator[Message | Rejected]:
        """The last line, if it has no newline."""
        text, self.rest = self.rest, b""
        yield from self._block(text)

    def _block(self, text: bytes) -> Iterator[Message | Rejected]:
        """Whole lines as a block; lines that are too long are taken out."""
        if not text:
            return
        start, self.offset = self.offset, self.offset + len(text)
        at = 0
        for first, last in _long_lines(text):
            if first > at:
                yield Message(text[at:first], self._part.modified_ms, self._part.path, start + at)
            yield self._too_long(text[first : first + LINE_BYTES], start + first)
            at = last
        if at < len(text):
            yield Message(text[at:], self._part.modified_ms, self._part.path, start + at)

    def _too_long(self, beginning: bytes, offset: int) -> Rejected:
        message = (
            f"line of more than {LINE_BYTES} bytes; the payload holds its first {LINE_BYTES}: "
            "write one record per line"
        )
        return Rejected(beginning, Reason.LINE_TOO_LONG, message, Stage.READ, self._part.path, offset)


def _long_lines(text: bytes) -> Iterator[tuple[int, int]]:
    """(start, end with newline) of the lines longer than LINE_BYTES.

    Looks at one byte in every LINE_BYTES only: a longer line cannot hide between two of them.
    """
    at = 0
    while len(text) - at > LINE_BYTES:
        newline = text.rfind(b"\n", at, at + LINE_BYTES + 1)
        if newline >= 0:
            at = newline + 1
            continue
        end = text.find(b"\n", at + LINE_BYTES) + 1 or len(text)
        yield at, end
        at = end


class _PartsFn(beam.DoFn):
    def __init__(self, framing: Framing) -> None:
        self._framing = framing

    def process(self, patterns: list[str]) -> Iterable[FilePart]:
        """The parts of all files of some patterns."""
        for file in match(patterns):
            yield from parts(file, self._framing)


class _BlocksFn(beam.DoFn):
    def __init__(self, framing: Framing) -> None:
        self._framing = framing

    def process(self, part: FilePart) -> Iterable[Message | RejectedOutput]:
        """The blocks of a part."""
        for block in blocks(part, self._framing):
            if isinstance(block, Rejected):
                metrics.count("points_read")
                yield refuse(block)
            else:
                metrics.count("messages_read")
                metrics.count("bytes_read", len(block.text))
                yield block


class ReadBlocks(beam.PTransform):  # type: ignore[type-arg]
    """Reads files as `Message` blocks of whole records; outputs `main` and `REJECTED`.

    Args:
      patterns: file patterns; a file that several of them match is read once.
      framing: that of the format of the files; not `Framing.NONE`.
    """

    def __init__(self, patterns: Iterable[str], framing: Framing = Framing.LINES) -> None:
        super().__init__()
        self.patterns = list(patterns)
        self.framing = framing

    def expand(self, root: PBegin) -> DoOutputsTuple:
        """See the class."""
        return (
            root
            | "Patterns" >> beam.Create([self.patterns], reshuffle=False)
            | "FindFiles" >> beam.ParDo(_PartsFn(self.framing)).with_output_types(FilePart)
            | "SpreadParts" >> beam.Reshuffle()
            | "ReadBlocks" >> refusing(_BlocksFn(self.framing), Message)
        )
