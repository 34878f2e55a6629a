"""A child process that ends with this one, however this one ends."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import IO

# Runs in the child just before the emulator takes its place. A prctl here and not in a preexec_fn:
# that would run Python code between fork and exec, which can deadlock beside gRPC's threads.
_EXEC_TIED_TO_PARENT = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):  # else the parent died before the prctl
    os.execv(sys.argv[2], sys.argv[2:])
"""


@contextlib.contextmanager
def child(command: Sequence[str], log: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A command as a child process in a session of its own, killed and waited for at the end.

    On Linux the kernel kills it when the thread that started it ends.

    Args:
      command: its first word is a path.
      log: takes what it prints.
    """
    if sys.platform == "linux":
        command = [sys.executable, "-IS", "-c", _EXEC_TIED_TO_PARENT, str(os.getpid()), *command]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
