"""The allocator of a process that trains on a CPU keeps what it frees."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Prints whether the setting was made, and how many pages were taken anew by tensors as large as those just freed.
PROGRAM = """
import resource, torch
from fairseq_ctxgates.allocator import keep_freed_memory

def fill():
    for megabytes in (1, 40, 3, 90):
        torch.ones(megabytes << 18)

done = keep_freed_memory()
fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
fill()
print(done, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def run(**environment: str) -> tuple[str, int]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**own, **environment, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    done, pages = result.stdout.split()
    return done, int(pages)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_freed_memory_is_kept() -> None:
    done, pages = run()
    assert done == "True"
    assert pages < 100


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
@pytest.mark.parametrize("setting", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_settings_of_the_user_stay(setting: str) -> None:
    done, pages = run(**{setting: "1" if setting.startswith("MALLOC") else "glibc.malloc.arena_max=1"})
    assert done == "False"
    assert pages > 90 << 8  # the largest tensor's alone
