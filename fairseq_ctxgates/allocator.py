"""The C library's memory allocator, told to keep what a training on a CPU frees.

By default, glibc gives large tensors back to the system when they are freed, and takes them anew in the next step, page
by page, each set to zero: a fifth of a training's processor time (docs/decisions.md).
"""

import ctypes
import os

import torch

# mallopt(3)
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER, _NONE = -1, 0


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, so that a later tensor takes it as it is. It then needs more
    memory, as much as its heap ever had; a model of 3 layers took a quarter more.

    Returns:
        whether that was done: not where there is a GPU, whose memory torch keeps by itself; nor without glibc; nor
        where the environment has the user's own settings, ``MALLOC_...`` or ``GLIBC_TUNABLES``
    """
    is_set = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if is_set or torch.cuda.is_available() or os.name != "posix":
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    return bool(library.mallopt(_TRIM_THRESHOLD, _NEVER) and library.mallopt(_MMAP_MAX, _NONE))
