"""Temporary folders of pipelines, each locked while its process lives; those of dead processes are removed.

The kernel releases a lock with the process that holds it, however that ends. A process id says less: another
process may have it by now.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "beam-pipeline-temp"
"""How Beam names these folders."""

_LOCK = "timebeam.lock"


@contextlib.contextmanager
def owned(folder: str) -> Iterator[None]:
    """A context in which a lock shows that a folder is in use; removes folders of dead processes beside it.

    The folder itself is removed by Beam at the end of the run.
    """
    _remove_orphans(Path(folder).parent)
    # Locked before it has its name: else another process could take its folder for that of a dead one.
    unnamed = Path(folder, f"{_LOCK}.new")
    with unnamed.open("wb") as lock:
        with contextlib.suppress(OSError):  # a file system without locks: only Beam removes the folder
            fcntl.flock(lock, fcntl.LOCK_EX)
            unnamed.rename(unnamed.with_name(_LOCK))
        yield


def _remove_orphans(parent: Path) -> None:
    """Removes the folders of this user's dead processes."""
    for path in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError):  # another process removes it too
            if path.parent.lstat().st_uid != os.getuid():
                continue
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent)
