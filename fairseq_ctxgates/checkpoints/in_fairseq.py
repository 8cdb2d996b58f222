"""Importing this module makes fairseq load checkpoints by :func:`.loading.load`, and copy them atomically.

fairseq 0.12.2 calls ``torch.load`` with its defaults; fairseq's main branch asks it to run whatever checkpoints hold.
In distributed training, one process sends options to the others, and fairseq would load these by ``torch.load`` too;
here they are broadcast instead.
"""

import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from fairseq import checkpoint_utils

from fairseq_ctxgates.checkpoints.loading import load, options_of
from fairseq_ctxgates.compat import PathManager, distributed_utils
from fairseq_ctxgates.files import atomic_write


class TorchOfCheckpoints(ModuleType):
    """torch as ``fairseq.checkpoint_utils`` sees it. All other callers of ``torch.load`` get torch's own.

    Attributes:
        last_options: those of the model of the checkpoint that fairseq loaded last in this process, as attributes;
            when training is resumed, fairseq shows them to nobody
    """

    last_options: object = None

    def load(self, *arguments: Any, **options: Any) -> Any:
        state = load(*arguments, **options)
        self.last_options = options_of(state) if isinstance(state, dict) else None
        return state

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class FilesOfCheckpoints(PathManager):
    """Files as ``fairseq.checkpoint_utils`` sees them. fairseq saves ``checkpoint_best.pt`` atomically, but then copies
    it to ``checkpoint_last.pt``, and a training that was killed at that moment could not be resumed."""

    @staticmethod
    def copy(src_path: str, dst_path: str, overwrite: bool = False) -> bool:
        if not (overwrite and PathManager.supports_rename(dst_path)):
            return PathManager.copy(src_path, dst_path, overwrite=overwrite)
        with atomic_write(Path(dst_path), durable=False) as temporary:  # like the file that is copied
            shutil.copyfile(src_path, temporary)
        return True


def _broadcast_objects() -> None:
    """Make it possible to resume distributed training. Its first process loads the checkpoint, which checks it, and
    sends it to the other processes, with options that ``weights_only`` would refuse there."""
    if not hasattr(torch.serialization, "add_safe_globals"):
        return

    def broadcast_object(obj: Any, src_rank: int, group: Any, dist_device: torch.device) -> Any:
        objects = [obj]
        torch.distributed.broadcast_object_list(objects, src=src_rank, group=group, device=dist_device)
        return objects[0]

    distributed_utils._broadcast_object_slow = broadcast_object


torch_of_checkpoints = TorchOfCheckpoints("torch")
checkpoint_utils.torch = torch_of_checkpoints
checkpoint_utils.PathManager = FilesOfCheckpoints
_broadcast_objects()
