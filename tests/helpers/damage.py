"""How files are damaged, and how often: ``RELIABILITY=full`` (``make test-reliability``) tries much more."""

from __future__ import annotations

import os
import random
from typing import Iterator

IS_FULL = os.environ.get("RELIABILITY") == "full"


CHANGES = 2000 if IS_FULL else 60  # of each file


def flips_and_cuts(content: bytes, number: int) -> Iterator[bytes]:
    """A file with one bit flipped at a random place, and as much of it as is before a random place, in turn."""
    generator = random.Random(1)
    for turn in range(number):
        place = generator.randrange(len(content))
        changed = bytearray(content)
        changed[place] ^= 1 << generator.randrange(8)
        yield content[:place] if turn % 2 else bytes(changed)
