"""Checks the options in a checkpoint, some of which fairseq evaluates as Python."""

from __future__ import annotations

import argparse
import ast
import pickle
import re
from enum import Enum
from pathlib import PurePath
from typing import Any, Iterator, Tuple

import numpy as np
from omegaconf import OmegaConf

# fairseq calls eval() on these when it builds a task, a model, a criterion or an optimizer.
EVALUATED = frozenset(
    (
        *("left_pad_source", "left_pad_target", "adaptive_input_cutoff", "adaptive_softmax_cutoff"),
        *("encoder_layers", "decoder_layers", "encoder_attention", "decoder_attention", "self_attention"),
        *("project_input", "gated_attention", "downsample", "pretrained", "decoder_zero_init"),
        *("xformers_att_config", "encoder_xformers_att_config", "decoder_xformers_att_config"),
        *("conv_feature_layers", "conv_aggregator_layers", "feature_encoder_spec", "vggblock_enc_config"),
        *("transformer_enc_config", "transformer_dec_config", "conv_enc_config", "conv_dec_config"),
        *("transformer_context", "transformer_sampling", "character_filters", "wer_args", "model_overrides"),
        *("pipeline_balance", "pipeline_encoder_balance", "pipeline_decoder_balance"),
        *("pipeline_devices", "pipeline_encoder_devices", "pipeline_decoder_devices"),
        *("adam_betas", "adamax_betas", "adafactor_eps", "lamb_betas"),
    )
)
LITERALS = (
    *(ast.Expression, ast.Constant, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.Load),
    *(ast.UnaryOp, ast.UAdd, ast.USub, ast.BinOp, ast.Add, ast.Sub, ast.Mult),  # [(512, 3)] * 4
)
SCALARS = (type(None), bool, int, float, complex, str, bytes, np.generic, PurePath, Enum)
# What OmegaConf may replace: references, environment variables and the time. It can also make containers from text.
REPLACED = re.compile(r"\$\{([\w.\[\]]+|(oc\.)?env:[^${}]*|now:[^${}]*)\}")


def check_options(state: Any) -> None:
    """Raise UnpicklingError where fairseq would run code from a checkpoint's options, or where a value there is not an
    option: fairseq would read the options of any object that has attributes."""
    if not isinstance(state, dict):
        return
    for name, value in _options([state.get("args"), state.get("cfg")]):
        if isinstance(value, str) and "${" in REPLACED.sub("", value):
            raise pickle.UnpicklingError(f"the option {name} is {value!r}, which OmegaConf would compute")
        if name in EVALUATED and not _is_literal(value):
            raise pickle.UnpicklingError(f"the option {name} is {value!r}, which fairseq would evaluate")


def _options(value: Any, name: str = "") -> Iterator[Tuple[str, Any]]:
    """Every option in a value, with its name."""
    if OmegaConf.is_config(value):
        value = OmegaConf.to_container(value, resolve=False)
    if isinstance(value, argparse.Namespace):
        value = vars(value)
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _options(inner, key)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for inner in value:
            yield from _options(inner, name)
    elif not isinstance(value, SCALARS):
        raise pickle.UnpicklingError(f"the option {name} is an object of {type(value)}")
    yield name, value


def _is_literal(value: Any) -> bool:
    if not isinstance(value, str):  # eval() also takes bytes and anything with the buffer interface
        return value is None or isinstance(value, (bool, int, float, list, tuple, dict))
    try:
        nodes = list(ast.walk(ast.parse(value.strip(), mode="eval")))
    except (SyntaxError, ValueError):
        return False
    return all(isinstance(node, LITERALS) for node in nodes)
