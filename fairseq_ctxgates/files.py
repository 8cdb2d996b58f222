"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Iterator


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path to write to, which becomes ``path`` when the block ends; nothing is left when it fails. To do it
    twice does no harm, also at once, from other threads or machines."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
