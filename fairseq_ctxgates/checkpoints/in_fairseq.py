"""Makes fairseq load checkpoints by :func:`.loading.load`; importing this module does it.

fairseq loads them by ``torch.load`` as it is (fairseq 0.12.2), or asks it to run whatever they hold (the main branch).
In distributed training one process sends options to the others, which fairseq would load by ``torch.load`` too; here
they are broadcast instead.
"""

from types import ModuleType
from typing import Any

import torch
from fairseq import checkpoint_utils

from fairseq_ctxgates.checkpoints.loading import load
from fairseq_ctxgates.compat import distributed_utils


class TorchOfCheckpoints(ModuleType):
    """torch as ``fairseq.checkpoint_utils`` sees it. Whoever else calls ``torch.load`` gets torch's own."""

    load = staticmethod(load)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _broadcast_objects() -> None:
    """Let distributed training be resumed: its first process loads the checkpoint and sends it to the others, with
    options that ``weights_only`` refuses. In the first process it has passed that protection."""
    if not hasattr(torch.serialization, "add_safe_globals"):
        return

    def broadcast_object(obj: Any, src_rank: int, group: Any, dist_device: torch.device) -> Any:
        objects = [obj]
        torch.distributed.broadcast_object_list(objects, src=src_rank, group=group, device=dist_device)
        return objects[0]

    distributed_utils._broadcast_object_slow = broadcast_object


checkpoint_utils.torch = TorchOfCheckpoints("torch")
_broadcast_objects()
