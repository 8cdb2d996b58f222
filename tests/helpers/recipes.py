"""Commands that a user would type, read by their own parsers, and the models that they train."""

from __future__ import annotations

from importlib import import_module
from typing import Any, List
from unittest.mock import patch

import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

import ctxgates
import fairseq_ctxgates.models
import fairseq_ctxgates.tasks  # noqa: F401
from fairseq_ctxgates.analysis import get_analysis
from fairseq_ctxgates.layer_list import parse_layers
from fairseq_ctxgates.models.context_model import ContextModel
from tests.helpers.models import make_task

FAIRSEQ_PARSERS = {
    "fairseq-train": options.get_training_parser,
    "fairseq-generate": options.get_generation_parser,
    "fairseq-interactive": options.get_interactive_generation_parser,
}


def parse(words: List[str]) -> Any:
    """The options of a command, by its own parser; SystemExit if one does not exist or has another kind of value."""
    if words[0] == "fairseq-preprocess":
        return options.get_preprocessing_parser().parse_args(words[1:])
    if words[0] in FAIRSEQ_PARSERS:
        return options.parse_args_and_arch(FAIRSEQ_PARSERS[words[0]](), words[1:])
    if words[1] == "analyze":
        return get_analysis(words[2]).parse_args(words[3:])
    module: Any = import_module(ctxgates.COMMANDS[words[1]][0])
    return module.get_parser().parse_args(words[2:])


def check_training(args: Any) -> Any:
    """Build the model of a training command, which is returned."""
    assert args.task in ("context_translation", "translation")
    if args.arch.startswith("rcg_"):
        assert args.criterion == "gate_regularized_cross_entropy"
    task = make_task()
    args.warm_start = ""  # whose checkpoint is not here
    # Of papers' sizes, most of the time goes into random numbers, which no test reads.
    initializers = ("kaiming_uniform_", "xavier_uniform_", "uniform_", "normal_", "orthogonal_")
    unchanged: Any = dict.fromkeys(initializers, lambda tensor, *_, **__: tensor)
    with patch.multiple(torch.nn.init, **unchanged):
        model = task.build_model(convert_namespace_to_omegaconf(args).model)
    loaded = {
        "preceding": getattr(args, "load_preceding_sentences", False),
        "relation": getattr(args, "load_relations", False),
    }
    assert isinstance(model, ContextModel) or args.arch in ("transformer", "transformer_iwslt_de_en")
    assert task.streams.required() == {name for name, is_loaded in loaded.items() if is_loaded}
    if getattr(args, "regularized_layers", None):
        parse_layers(args.regularized_layers, len(model.decoder.returnable), "--regularized-layers")
    return model
