"""Which messages a stream works on, noted in a file: what was under way when a process died is suspect."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from timebeam.schema.messages import Message

_LOGGER = logging.getLogger(__name__)


class UnderWay:
    """The note of one process. It is removed when the process ends in any way but a crash or a kill.

    Attributes:
      suspects: ids of messages that dead processes of the same stream were working on.
    """

    def __init__(self, stream: Iterable[str], folder: Path | None = None) -> None:
        """Reads, and takes over, the notes of dead processes.

        Args:
          stream: what tells this stream from others on this machine.
          folder: for the notes; by default `timebeam` in the user's folder for state.
        """
        digest = hashlib.sha256(json.dumps(list(stream)).encode()).hexdigest()[:16]
        self._folder = folder or _state_folder()
        self._path = self._folder / f"under-way-{digest}-{os.getpid()}.json"
        self.suspects: set[str] = set()
        for path in sorted(self._folder.glob(f"under-way-{digest}-*.json")):
            pid = path.stem.rpartition("-")[2]
            if path == self._path or not _is_alive(pid):
                with contextlib.suppress(OSError, ValueError):
                    self.suspects |= {str(number) for number in json.loads(path.read_text("utf-8"))}
                    path.unlink()
        self._note(())

    def split(self, messages: Sequence[Message]) -> tuple[list[Message], Sequence[Message]]:
        """(those that are suspect, the others)."""
        if not self.suspects:
            return [], messages
        suspect = [message for message in messages if _id(message) in self.suspects]
        return suspect, [message for message in messages if _id(message) not in self.suspects]

    @contextlib.contextmanager
    def noting(self, messages: Sequence[Message]) -> Iterator[None]:
        """Notes messages as under way; when they are done, they are not suspect any more."""
        self._note(messages)
        try:
            yield
            self.suspects.difference_update(map(_id, messages))
        finally:
            self._note(())

    def close(self) -> None:
        """Removes the note."""
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _note(self, messages: Sequence[Message]) -> None:
        ids = [*self.suspects, *map(_id, messages)]
        if not ids:
            self.close()
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            new = self._path.with_suffix(".part")
            new.write_text(json.dumps(ids), "utf-8")
            new.replace(self._path)
        except OSError as error:
            _LOGGER.warning(
                "cannot write the state of the stream, set XDG_STATE_HOME to a writable folder: %s", error
            )


def _id(message: Message) -> str:
    return message.envelope.message_id if message.envelope else ""


def _state_folder() -> Path:
    """Where a program keeps what outlives it."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "timebeam"


def _is_alive(pid: str) -> bool:
    """Whether a process of this machine runs."""
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        return True  # another user's process has this id
    return True
