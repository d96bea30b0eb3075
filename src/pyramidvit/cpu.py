"""What a process that computes on the CPU should settle before torch starts. docs/results.md has what each costs and brings."""

import ctypes
import os
import sys

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
"""Numbers of glibc's mallopt parameters, from malloc.h."""


def wait_without_spinning() -> None:
    """Let threads that wait for each other sleep after some microseconds. Takes effect only before torch is imported.

    By default they spin for milliseconds, and where another process wants the core as well (a worker that reads pictures, say), the thread
    that all wait for doesn't get it. A choice of the user's stays.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")


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
