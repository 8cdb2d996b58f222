"""Linear layers by oneDNN are torch's, and are used where they are faster."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Iterator

import pytest
import torch
from torch.nn import functional

from fairseq_ctxgates.modules import linear as module
from fairseq_ctxgates.modules.linear import Linear, linear, maker_of_processor, onednn_is_faster, year_of_mkl
from tests.helpers.models import make_decoding_batch, make_model, make_side_inputs

AMD = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\n\nprocessor\t: 1\nvendor_id\t: AuthenticAMD\n"
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


@pytest.fixture(autouse=True)
def _no_memory_of_processors() -> Iterator[None]:
    yield
    onednn_is_faster.cache_clear()


def pretend(monkeypatch: pytest.MonkeyPatch, maker: str, year_of_mkl: int = 2020) -> None:
    """On a processor of another maker, with an MKL of that year."""
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(module, "maker_of_processor", lambda: maker)
    monkeypatch.setattr(module, "year_of_mkl", lambda: year_of_mkl)
    onednn_is_faster.cache_clear()


def is_by_onednn(x: torch.Tensor, weight: torch.Tensor) -> bool:
    node = linear(x, weight).grad_fn
    assert node is not None
    return "ToDense" in node.name()


@pytest.mark.parametrize("maker", ["GenuineIntel", "AuthenticAMD"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(100, 256), (4, 25, 256), (3, 256)])
def test_it_is_torchs_linear(monkeypatch: pytest.MonkeyPatch, maker: str, bias: bool, shape: tuple[int, ...]) -> None:
    """In float32, by oneDNN where it is large, as exact as torch's, with the same gradients."""
    pretend(monkeypatch, maker)
    generator = torch.Generator().manual_seed(1)
    layer = Linear(256, 200, bias=bias)
    x = torch.randn(shape, generator=generator)
    upstream = torch.randn(*shape[:-1], 200, generator=generator)
    exact = [value.detach().double().requires_grad_() for value in (x, *layer.parameters())]
    expected = functional.linear(exact[0], *exact[1:])
    expected_gradients = torch.autograd.grad(expected, exact, upstream.double())
    x.requires_grad_()
    output = layer(x)
    assert output.layout == torch.strided
    gradients = torch.autograd.grad(output, [x, *layer.parameters()], upstream)
    for actual, value in zip((output, *gradients), (expected, *expected_gradients)):
        torch.testing.assert_close(actual, value, rtol=1e-4, atol=1e-4, check_dtype=False)


@needs_onednn
@pytest.mark.parametrize("maker", ["AuthenticAMD", "HygonGenuine"])
def test_large_products_are_onednns(monkeypatch: pytest.MonkeyPatch, maker: str) -> None:
    pretend(monkeypatch, maker)
    x, weight = torch.randn(64, 256, requires_grad=True), torch.randn(512, 256)
    assert [is_by_onednn(rows, weight) for rows in (x, x[:16], x[:31])] == [True, False, False]
    with torch.backends.mkldnn.flags(enabled=False):
        assert not is_by_onednn(x, weight)
    assert linear(x.double(), weight.double()).dtype == torch.float64


@needs_onednn
def test_where_mkl_is_fast_or_missing_all_products_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = torch.randn(64, 256, requires_grad=True), torch.randn(512, 256)
    for maker, year in (("GenuineIntel", 2020), ("", 2020), ("AuthenticAMD", 2021), ("AuthenticAMD", 2024)):
        pretend(monkeypatch, maker, year)
        assert not is_by_onednn(x, weight)
    pretend(monkeypatch, "AuthenticAMD")
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert not is_by_onednn(x, weight)


@pytest.mark.parametrize(
    "line, year",
    [
        ("Intel(R) Math Kernel Library Version 2020.0.0 Product Build 20191122 for Intel(R) 64 architecture", 2020),
        (
            "Intel(R) oneAPI Math Kernel Library Version 2024.2-Product Build 20240605 for Intel(R) 64 architecture",
            2024,
        ),
        ("OpenMP 201511 (a.k.a. OpenMP 4.5)", 0),
    ],
)
def test_year_of_mkl(monkeypatch: pytest.MonkeyPatch, line: str, year: int) -> None:
    monkeypatch.setattr(torch.__config__, "show", lambda: f"PyTorch built with:\n  - GCC 7.3\n  - {line}\n")
    assert year_of_mkl() == year


def test_this_torch_says_the_year_of_its_mkl() -> None:
    assert (year_of_mkl() > 2000) == torch.backends.mkl.is_available()


@needs_onednn
def test_large_products_under_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN's tensors have no autocast."""
    pretend(monkeypatch, "AuthenticAMD")
    x, weight = torch.randn(64, 256, requires_grad=True), torch.randn(512, 256)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = linear(x, weight)
    assert output.dtype == torch.bfloat16
    output.float().sum().backward()


@pytest.mark.slow
@needs_onednn
@pytest.mark.skipif(not hasattr(torch, "compile"), reason="torch before 2.0 has no compiler")
def test_large_products_in_a_compiled_model(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "AuthenticAMD")
    layer, x = Linear(256, 512), torch.randn(64, 256)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("content", "maker"), [(AMD, "AuthenticAMD"), ("processor\t: 0\nBogoMIPS\t: 50.00\n", ""), ("", ""), (None, "")]
)
def test_maker_of_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, maker: str) -> None:
    if content is not None:
        (tmp_path / "cpuinfo").write_text(content)
    monkeypatch.setattr(module, "_PROCESSORS", tmp_path / "cpuinfo")
    assert maker_of_processor() == maker


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("arch", ["context_transformer", "rcg_transformer", "isg_transformer", "fra_transformer"])
def test_attention_runs_its_projections(monkeypatch: pytest.MonkeyPatch, arch: str) -> None:
    """Where oneDNN is faster all of attention's products are modules that can use it, but not in an encoder that reads
    the source under masks; outputs and gradients are those of torch's own attention."""
    net_input = make_decoding_batch()["net_input"]
    net_input = {**net_input, **make_side_inputs(net_input["src_tokens"])}
    found = []
    for maker in ("GenuineIntel", "AuthenticAMD"):
        pretend(monkeypatch, maker)
        model = make_model(arch)
        projections = {name: part for name, part in model.named_modules() if name.endswith(PROJECTIONS)}
        run: set[str] = set()
        for name, part in projections.items():
            part.register_forward_hook(partial(note, run, name))
        output = model(**net_input, return_attention=False)[0]
        found.append((output, *torch.autograd.grad(output.logsumexp(-1).sum(), list(model.parameters()))))
        if maker == "GenuineIntel":
            assert not run
        else:
            assert run == {name for name in projections if arch != "fra_transformer" or name.startswith("decoder.")}
    for ours, of_torch in zip(*found):
        torch.testing.assert_close(ours, of_torch)


def note(names: set[str], name: str, *_: object) -> None:
    """A hook that adds a module's name."""
    names.add(name)
