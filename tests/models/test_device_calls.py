"""How often a GPU would make the host wait, and how many kernels it would be given, beside fairseq's own models."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.slow

device_calls: Any = pytest.importorskip(
    "benchmarks.device_calls", reason="counting calls needs torch 2.0 or later", exc_type=ImportError
)
ARCHITECTURES = [
    *((stock, name) for stock, names in device_calls.ARCHITECTURES.items() for name in names),
    *(("lstm" if "rnnsearch" in name else "transformer", name) for name in device_calls.SYSTEMS),
]
count_step = functools.lru_cache(maxsize=None)(device_calls.count_step)


@pytest.mark.parametrize(("stock", "arch"), ARCHITECTURES)
def test_training_waits_no_more_often_than_stock(stock: str, arch: str) -> None:
    found, expected = count_step(arch), count_step(stock)
    assert found.forward.waits <= expected.forward.waits
    assert found.backward.waits == 0


@pytest.mark.parametrize(("stock", "arch"), ARCHITECTURES)
def test_decoding_waits_no_more_often_than_stock(stock: str, arch: str) -> None:
    assert count_step(arch).decoding.waits <= count_step(stock).decoding.waits


def test_the_plain_transformer_launches_no_more_than_stock() -> None:
    for found, expected in zip(count_step("context_transformer"), count_step("transformer")):
        assert found.launches <= expected.launches


def test_launches_of_a_context_gate() -> None:
    """At most 12 a layer in the forward pass; the regularizer's do not grow with the layers."""
    counts = {
        (arch, layers): count_step(arch, layers).forward.launches
        for arch in ("context_transformer", "rcg_transformer")
        for layers in (1, 3)
    }
    gates = [counts["rcg_transformer", layers] - counts["context_transformer", layers] for layers in (1, 3)]
    assert gates[1] - gates[0] <= 2 * 12


def test_reading_on_the_host_waits_and_a_view_launches_nothing() -> None:
    x = torch.arange(6.0).view(2, 3)
    expected = {
        (lambda: x.t()): (0, 0),  # a view
        (lambda: x + 1): (0, 1),
        (lambda: bool(x.sum() > 0)): (1, 3),
        (lambda: x[x > 1]): (1, 2),
        (lambda: x[torch.tensor([0])]): (0, 1),
        (lambda: x.nonzero()): (1, 1),
        (lambda: x.cpu().max().item()): (1, 0),  # what follows the copy is done on the host
        (lambda: x.tolist()): (1, 0),
        (lambda: torch.tensor(2.0).item()): (0, 0),  # never was on a device
    }
    for run, calls in expected.items():
        assert device_calls.count_on_cpu(run) == calls
