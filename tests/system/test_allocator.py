"""The allocator of a process that trains on a CPU keeps what it frees."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from fairseq_ctxgates import allocator

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is glibc's")

# Prints whether the setting was made; how many pages were taken anew by tensors as large as those just freed, at the
# least of some times, since the heap may be short of some bytes at first; and, in megabytes, how much memory a forked
# process has for itself when its parent has used what was free.
PROGRAM = """
import os, resource, runpy, sys, torch
keep_freed_memory = runpy.run_path(sys.argv[1])["keep_freed_memory"]  # without fairseq, whose import takes seconds

def fill():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [torch.ones(megabytes << 18) for megabytes in (1, 40, 3, 90)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def private_megabytes(process):
    with open(f"/proc/{process}/smaps_rollup") as stream:
        return sum(int(line.split()[1]) for line in stream if line.startswith("Private_Dirty")) // 1024

done = keep_freed_memory() and keep_freed_memory()  # once is enough
pages = min(fill() for _ in range(5))
reading, writing = os.pipe()
process = os.fork()
if not process:
    os.read(reading, 1)
    os._exit(0)
fill()
print(done, pages, private_megabytes(process))
os.write(writing, b"x")
os.wait()
"""
SETTINGS = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")


def run(**environment: str) -> tuple[str, int, int]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, allocator.__file__],
        env={**own, **environment, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    done, pages, megabytes = result.stdout.split()
    return done, int(pages), int(megabytes)


def test_freed_memory_is_kept() -> None:
    default, default_pages, default_megabytes = run(MALLOC_TOP_PAD_="0")  # glibc's own
    done, pages, megabytes = run()
    assert (default, done) == ("False", "True")
    assert pages < default_pages / 10
    assert megabytes < default_megabytes + 40  # of the 134 that were free


@pytest.mark.parametrize("setting", ["MALLOC_MMAP_MAX_=65536", "GLIBC_TUNABLES=glibc.malloc.arena_max=1"])
def test_settings_of_the_user_stay(setting: str) -> None:
    name, value = setting.split("=", 1)
    assert run(**{name: value})[0] == "False"


def test_other_settings_do_not_count() -> None:
    assert run(MALLOC_ARENA_MAX="1")[0] == "True"
