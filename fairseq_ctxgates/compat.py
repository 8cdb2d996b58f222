"""Both software stacks in one place: the only file that knows how one fairseq or torch differs from another.

* fairseq loads checkpoints by ``torch.load`` as it is (fairseq 0.12.2), or asks it to run whatever they hold (the main
  branch). Importing this module makes it load them by :func:`checkpoints.loading.load`. What one process of a
  distributed training sends to the others fairseq loads so as well, and here goes another way.
* fairseq 0.12.2's encoder layers carry every parameter twice, for a fast path that drops the attention mask when there
  is padding. :class:`EncoderLayer` has neither.
"""

from types import ModuleType
from typing import Any, Dict

import torch
from fairseq import checkpoint_utils
from fairseq.distributed import utils as distributed_utils
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from torch import nn

from fairseq_ctxgates.checkpoints.loading import load


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

FAST_PATH_PARAMETERS = tuple(
    f"{name}_{kind}" for name in ("in_proj", "out_proj", "fc1", "fc2") for kind in ("weight", "bias")
)


# What older fairseqs kept of their positional embeddings, and newer ones drop when they load it.
_OBSOLETE = ("embed_positions._float_tensor", "embed_positions.weights")


def is_obsolete(parameter: str) -> bool:
    """Whether a checkpoint's parameter is one that the fairseq at hand may do without."""
    return parameter.endswith(_OBSOLETE)


class EncoderLayer(TransformerEncoderLayerBase):
    """fairseq's Transformer encoder layer without the duplicate parameters and the fast path of fairseq 0.12.2."""

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        for name in FAST_PATH_PARAMETERS:
            self._parameters.pop(name, None)
        self.can_use_fastpath = False

    # fairseq 0.12.2 fills the duplicates here and turns the fast path on.
    _load_from_state_dict = nn.Module._load_from_state_dict

    def upgrade_state_dict_named(self, state_dict: Dict[str, Any], name: str) -> None:
        super().upgrade_state_dict_named(state_dict, name)
        for parameter in FAST_PATH_PARAMETERS:
            state_dict.pop(f"{name}.{parameter}", None)
