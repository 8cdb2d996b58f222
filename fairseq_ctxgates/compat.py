"""The names of fairseq that are not among its documented extension points, and the differences between its versions.

The extension points are the packages that fairseq's documentation tells the writers of plugins to import, and the names
that these packages export; docs/decisions.md has the list, and ``test_fairseq_imports.py`` holds the rule. All other
names of fairseq that this package needs are imported here, and nowhere else. If fairseq lacks one, loading the plugin
fails with an error that says which.

fairseq 0.12.2's encoder layers carry every parameter twice, for a fast path that drops the attention mask when there is
padding. :class:`EncoderLayer` has neither.
"""

from typing import Any, Dict

KNOWN_TO_WORK = "fairseq 0.12.2, fairseq's main branch, and fairseq-fixed 0.12.3.1"
INSTALL_FAIRSEQ = "pip install 'fairseq-ctxgates[fairseq]'"

try:
    from fairseq.criterions.label_smoothed_cross_entropy import (
        LabelSmoothedCrossEntropyCriterion,
        LabelSmoothedCrossEntropyCriterionConfig,
    )
    from fairseq.data.indexed_dataset import (
        MMapIndexedDataset,
        infer_dataset_impl,
    )
    from fairseq.data.multilingual import multilingual_utils
    from fairseq.dataclass.utils import gen_parser_from_dataclass
    from fairseq.distributed import fsdp_wrap
    from fairseq.distributed import utils as distributed_utils
    from fairseq.file_io import PathManager
    from fairseq.logging import meters, metrics
    from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
    from fairseq.models.transformer import (
        TransformerConfig,
        TransformerDecoderBase,
        TransformerEncoderBase,
        TransformerModelBase,
    )
    from fairseq.modules.checkpoint_activations import checkpoint_wrapper
    from fairseq.modules.quant_noise import quant_noise
    from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase
    from fairseq.registry import REGISTRIES
    from fairseq.search import BeamSearch, Sampling
    from fairseq.sequence_generator import (
        EnsembleModel,
        EnsembleModelWithAlignment,
        SequenceGenerator,
        SequenceGeneratorWithAlignment,
    )
    from fairseq.sequence_scorer import SequenceScorer
    from fairseq.tasks.translation import TranslationConfig, TranslationTask
    from torch import nn
except (ImportError, AttributeError, ValueError) as error:  # the last two: a fairseq too old for this Python or NumPy
    if isinstance(error, ModuleNotFoundError) and error.name in ("fairseq", "torch"):
        raise ImportError(f"{error.name} is not installed in this environment: {INSTALL_FAIRSEQ}") from error
    raise ImportError(
        f"the fairseq in this environment cannot be used ({error}); known to work are {KNOWN_TO_WORK}: "
        f"{INSTALL_FAIRSEQ}"
    ) from error

__all__ = [
    "ARCH_MODEL_REGISTRY",
    "MODEL_DATACLASS_REGISTRY",
    "REGISTRIES",
    "BeamSearch",
    "EncoderLayer",
    "EnsembleModel",
    "EnsembleModelWithAlignment",
    "LabelSmoothedCrossEntropyCriterion",
    "LabelSmoothedCrossEntropyCriterionConfig",
    "MMapIndexedDataset",
    "PathManager",
    "Sampling",
    "SequenceGenerator",
    "SequenceGeneratorWithAlignment",
    "SequenceScorer",
    "TransformerConfig",
    "TransformerDecoderBase",
    "TransformerDecoderLayerBase",
    "TransformerEncoderBase",
    "TransformerModelBase",
    "TranslationConfig",
    "TranslationTask",
    "checkpoint_wrapper",
    "distributed_utils",
    "fsdp_wrap",
    "gen_parser_from_dataclass",
    "infer_dataset_impl",
    "is_obsolete",
    "meters",
    "metrics",
    "multilingual_utils",
    "quant_noise",
]

FAST_PATH_PARAMETERS = tuple(
    f"{name}_{kind}" for name in ("in_proj", "out_proj", "fc1", "fc2") for kind in ("weight", "bias")
)


# What older versions of fairseq saved of their positional embeddings, and newer versions drop when they load it.
_OBSOLETE = ("embed_positions._float_tensor", "embed_positions.weights")


def is_obsolete(parameter: str) -> bool:
    """Whether a checkpoint's parameter is one that the installed version of fairseq may not have."""
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
