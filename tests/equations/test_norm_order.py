from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fairseq_ctxgates.modules.norm_order import NormOrder, SublayerNorm
from tests.helpers.models import make_model, norm_order_options


def tenfold(x: Tensor) -> Tensor:
    """A stand-in for a layer norm."""
    return 10 * x


@pytest.mark.parametrize(
    ("order", "sublayer_input", "added", "alone"),
    [
        ("post", 1, 30, 20),  # ln(1 + 2), ln(2)
        ("pre", 10, 3, 2),  # 1 + 2, 2
        ("inner", 1, 21, 20),  # 1 + ln(2), ln(2)
    ],
)
def test_by_hand(order: str, sublayer_input: float, added: float, alone: float) -> None:
    x, branch = torch.tensor(1.0), torch.tensor(2.0)
    norm = SublayerNorm(NormOrder(order), tenfold)
    assert norm.input(x) == sublayer_input
    assert norm.add(x, branch) == added
    assert norm.normalize_output(branch) == alone


@pytest.mark.parametrize(("normalize_before", "order"), [(False, "post"), (True, "pre")])
def test_default_is_what_decoder_normalize_before_says(normalize_before: bool, order: str) -> None:
    source, target = torch.tensor([[4, 5, 2]]), torch.tensor([[2, 6, 7]])
    default = make_model("rcg_transformer", decoder_normalize_before=normalize_before)
    named = make_model("rcg_transformer", **norm_order_options(order))
    assert torch.equal(default(source, None, target)[0], named(source, None, target)[0])
