"""Importing this module makes fairseq load checkpoints by :func:`.loading.load`.

fairseq 0.12.2 calls ``torch.load`` with its defaults; fairseq's main branch asks it to run whatever checkpoints hold.
In distributed training, one process sends options to the others, and fairseq would load these by ``torch.load`` too;
here they are broadcast instead.
"""

from types import ModuleType
from typing import Any

import torch
from fairseq import checkpoint_utils

from fairseq_ctxgates.checkpoints.loading import load
from fairseq_ctxgates.compat import distributed_utils


class TorchOfCheckpoints(ModuleType):
    """torch as ``fairseq.checkpoint_utils`` sees it. All other callers of ``torch.load`` get torch's own."""

    load = staticmethod(load)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


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


checkpoint_utils.torch = TorchOfCheckpoints("torch")
_broadcast_objects()
