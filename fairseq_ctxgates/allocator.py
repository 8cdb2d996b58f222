"""The C library's memory allocator, told to keep what a training on a CPU frees.

By default, glibc gives large tensors back to the system when they are freed, and takes them anew in the next step, page
by page, each set to zero: a fifth of a training's processor time (docs/decisions.md).
"""

import ctypes
import functools
import os

import torch

# mallopt(3)
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER, _NONE = -1, 0
# The settings of the user's own that decide the same.
_VARIABLES = (
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_MMAP_MAX_",
    "MALLOC_TOP_PAD_",
    "GLIBC_TUNABLES",
)


@functools.lru_cache(maxsize=None)
def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, so that a later tensor takes it as it is. It then needs more
    memory, as much as its heap ever had; a model of 3 layers took a quarter more. What is free when a process is
    forked, such as a worker that loads data, is given back first: else the worker would hold it as long as it lives.

    Returns:
        whether that was done: not on a machine with a GPU, whose memory torch keeps by itself; nor without glibc; nor
        where the environment has one of the user's own settings, ``MALLOC_TRIM_THRESHOLD_``,
        ``MALLOC_MMAP_THRESHOLD_``, ``MALLOC_MMAP_MAX_``, ``MALLOC_TOP_PAD_`` or ``GLIBC_TUNABLES``
    """
    if os.name != "posix" or torch.cuda.is_available() or not os.environ.keys().isdisjoint(_VARIABLES):
        return False
    library = ctypes.CDLL(None)
    if not all(hasattr(library, name) for name in ("gnu_get_libc_version", "mallopt", "malloc_trim")):
        return False
    if not (library.mallopt(_TRIM_THRESHOLD, _NEVER) and library.mallopt(_MMAP_MAX, _NONE)):
        return False
    os.register_at_fork(before=functools.partial(library.malloc_trim, 0))
    return True
