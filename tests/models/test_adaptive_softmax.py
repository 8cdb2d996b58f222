"""The adaptive softmax, which computes probabilities from the decoder's features in place of an output layer."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from tests.helpers.models import SOURCES, TARGETS, build_model, make_batch


@pytest.mark.parametrize("shared", ["share_all_embeddings", "share_decoder_input_output_embed"])
def test_it_is_loaded_beside_shared_embeddings(shared: str) -> None:
    """fairseq's own such model cannot be loaded."""
    options: dict[str, Any] = {"adaptive_softmax_cutoff": [8, 12], "share_all_embeddings": False, shared: True}
    first, second = (build_model("isg_transformer_tiny", **options).eval() for _ in range(2))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    batch = make_batch(SOURCES, TARGETS)["net_input"]
    expected, found = (model(**batch, preceding_tokens=batch["src_tokens"])[0] for model in (first, second))
    assert torch.equal(found, expected)
