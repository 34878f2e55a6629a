"""Freed arrays leave the process, also after a large one has made glibc keep them."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import numpy as np
from timebeam.transforms.rollup.read_chunk import give_back_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

if {called}:
    give_back_memory()
start = resident()
np.ones(30 << 20, np.uint8)  # freed at once: from now on glibc keeps what is smaller
blocks = [np.ones(5 << 20, np.uint8) for _ in range(9)]
pins = np.ones(1000, np.uint8)
blocks.clear()
print(resident() - start)
"""


def left(called: bool) -> int:
    """Bytes that a process still holds after it has freed 45 MB."""
    program = PROGRAM.format(called=called)
    return int(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout)


@pytest.mark.long
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these bounds")
def test_freed_arrays_are_given_back():
    assert left(called=True) < 10 << 20
    assert left(called=False) > 30 << 20
