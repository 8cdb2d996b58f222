"""``torch.save`` for checkpoints, of which no half-written file is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import torch

from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.files import atomic_write


def check_output(path: Path) -> None:
    """Raise UserError if an ``--output`` cannot be the name of a new checkpoint, before work is done for it."""
    if not path.parent.is_dir():
        raise UserError(f"{path.parent} is not a directory: make it, or choose another --output")
    if path.is_dir():
        raise UserError(f"--output {path} is a folder: name a file in it")


def save_checkpoint(state: Dict[str, Any], path: Path) -> None:
    """Write a checkpoint atomically; UserError if this fails, for example on a full disk."""
    try:
        with atomic_write(path) as temporary:
            torch.save(state, temporary)
    except (OSError, RuntimeError) as error:
        raise UserError(f"{path} could not be written: {error}") from error
