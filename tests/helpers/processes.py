"""Looking at processes, and waiting for what they do."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Callable, TypeVar

T = TypeVar("T")


def is_running(process: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(condition: Callable[[], T], seconds: float = 120) -> T:
    """What a condition gives as soon as that is true, or when the time is over."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if found or time.monotonic() >= end:
            return found
        time.sleep(0.05)
