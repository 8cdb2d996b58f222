"""The C library's memory allocator, which is told to keep the memory that training on a CPU frees.

By default, glibc returns the memory of large tensors to the system when they are freed, and requests it again in the
next step, page by page, each page set to zero. That takes a fifth of a training's processor time (docs/decisions.md).
"""

import ctypes
import functools
import os

import torch

# mallopt(3)
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER, _NONE = -1, 0
# The user's own settings for the same.
_VARIABLES = (
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_MMAP_MAX_",
    "MALLOC_TOP_PAD_",
    "GLIBC_TUNABLES",
)


@functools.lru_cache(maxsize=None)
def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, so that later tensors reuse it as it is.

    The process then needs more memory, as much as its heap ever had; a model of 3 layers took a quarter more. Free
    memory is returned to the system before a process is forked, such as a worker that loads data: otherwise the worker
    would hold that memory as long as it lives.

    Returns:
        whether this was done. It is not done on a machine with a GPU, whose memory torch keeps by itself; without
        glibc; or if the environment has one of the user's own settings, ``MALLOC_TRIM_THRESHOLD_``,
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
