"""Both software stacks in one place: the only file that knows how one fairseq or torch differs from another.

* torch 2.6 and later load checkpoints with ``weights_only=True`` and refuse what fairseq itself puts there (its options
  as an ``argparse.Namespace``, the NumPy numbers of its meters). Importing this module allows those types, and no more.
  fairseq also loads so what one process of a distributed training sends to the others, which here goes another way.
* fairseq 0.12.2's encoder layers carry every parameter twice, for a fast path that drops the attention mask when there
  is padding. :class:`EncoderLayer` has neither.
"""

import argparse
import functools
import pickle
from typing import Any, Dict

import numpy as np
import torch
from fairseq import checkpoint_utils
from fairseq.distributed import utils as distributed_utils
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from torch import nn

from fairseq_ctxgates.errors import UserError


def _allow_fairseq_types_in_checkpoints() -> None:
    if not hasattr(torch.serialization, "add_safe_globals"):
        return  # torch before 2.4 unpickles whatever a checkpoint holds; the README says so
    try:
        from numpy._core.multiarray import _reconstruct, scalar  # NumPy 2
    except ImportError:
        from numpy.core.multiarray import _reconstruct, scalar  # NumPy 1
    number_types = {type(np.dtype(name)) for name in ("bool", "int32", "int64", "float32", "float64")}
    torch.serialization.add_safe_globals([argparse.Namespace, np.ndarray, np.dtype, *number_types])
    for function in (_reconstruct, scalar):
        # A checkpoint names the module of the NumPy that wrote it, which moved between NumPy 1 and 2.
        for module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            torch.serialization.add_safe_globals([(function, f"{module}.{function.__name__}")])


def _name_refused_checkpoints() -> None:
    """Make fairseq say which checkpoint torch refused; torch names no file, and recommends to lift the protection."""
    load = checkpoint_utils.load_checkpoint_to_cpu

    @functools.wraps(load)
    def load_checkpoint_to_cpu(path: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return load(path, *args, **kwargs)
        except pickle.UnpicklingError as error:
            reason = str(error).splitlines()[0]
            raise UserError(
                f"{path} holds objects that fairseq does not put into checkpoints, and was not loaded, because loading "
                f"them can run any program; save the model again where you trust the file ({reason})"
            ) from error

    checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu


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


_allow_fairseq_types_in_checkpoints()
_name_refused_checkpoints()
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
