"""What a process that computes on the CPU should settle before torch starts. docs/results.md has what each costs and brings."""

import ctypes
import os
import sys
import time
from pathlib import Path

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
"""Numbers of glibc's mallopt parameters, from malloc.h."""


LOADAVG = Path("/proc/loadavg")
SPINS_ALONE, SPINS_BESIDE_OTHERS = 20_000, 2_000
"""Rounds that a waiting thread spins before it sleeps: some hundred microseconds, and a tenth of that."""


def limit_spinning() -> None:
    """Let threads that wait for each other sleep after a while. Takes effect only before torch is imported.

    By default they spin for milliseconds, and where another process wants the core as well, the thread that all wait for doesn't get it.
    Sleeping at once costs a wake-up per operation, a third of the time of a small network, so that the machine is looked at first. A choice
    of the user's stays.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS_ALONE if _is_alone() else SPINS_BESIDE_OTHERS))


def _is_alone() -> bool:
    """Whether nobody else computes, as far as Linux tells: one who does is there every time we look."""
    looks = []
    for _ in range(4):
        try:
            looks.append(LOADAVG.read_text().split()[3])  # such as 1/93: threads that run or want to, and all
        except OSError:
            return False
        time.sleep(0.002)
    return any(look.startswith("1/") for look in looks)


def keep_freed_memory() -> bool:
    """Ask glibc to serve large blocks from its heap and to keep what is freed; False where there is no glibc.

    Networks allocate and free the same large tensors in every step. By default glibc maps each one anew, and the kernel clears every page.
    Memory of the process then stays at its peak, which is what a training run needs anyway.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 256 * 2**20))
    return all(mallopt(parameter, value) == 1 for parameter, value in settings)
