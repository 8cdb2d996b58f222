"""Architectures are registered as fairseq's ``register_model`` does, but their configurations are built on demand."""

from copy import deepcopy
from dataclasses import dataclass
from typing import List

import pytest
from fairseq import models
from fairseq.dataclass import FairseqDataclass
from fairseq.models import register_model
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from fairseq_ctxgates.models.context_transformer import ContextTransformerModel
from fairseq_ctxgates.models.presets import PresetNode

REGISTRIES = (
    "MODEL_REGISTRY",
    "MODEL_DATACLASS_REGISTRY",
    "ARCH_MODEL_REGISTRY",
    "ARCH_MODEL_NAME_REGISTRY",
    "ARCH_MODEL_INV_REGISTRY",
    "ARCH_CONFIG_REGISTRY",
)


@pytest.mark.parametrize("arch", ["rcg_transformer_big", "context_transformer_align", "rnnsearch_tiny"])
def test_registered_as_fairseq_does(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in REGISTRIES:
        monkeypatch.setattr(models, name, dict(getattr(models, name)))
    store = ConfigStore.instance()
    monkeypatch.setitem(store.repo, "model", dict(store.repo["model"]))
    config = models.MODEL_DATACLASS_REGISTRY[arch]
    model = register_model("by_fairseq", dataclass=config)(type("ByFairseq", (ContextTransformerModel,), {}))

    ours, by_fairseq = store.load(f"model/{arch}.yaml"), store.load("model/by_fairseq.yaml")

    assert ours.node == {**by_fairseq.node, "_name": arch}
    assert OmegaConf.get_type(ours.node) is OmegaConf.get_type(by_fairseq.node) is config
    assert (ours.name, ours.group, ours.package) == (f"{arch}.yaml", by_fairseq.group, by_fairseq.package)
    assert ours.provider == by_fairseq.provider
    assert getattr(models.ARCH_MODEL_REGISTRY[arch], "__dataclass") is getattr(model, "__dataclass")
    assert all((arch in getattr(models, name)) == ("by_fairseq" in getattr(models, name)) for name in REGISTRIES)


def test_a_configuration_is_built_when_it_is_read() -> None:
    built: List[FairseqDataclass] = []

    @dataclass
    class Config(FairseqDataclass):
        layers: int = 6

        def __post_init__(self) -> None:
            built.append(self)

    node = deepcopy(PresetNode("preset", Config, ConfigStore.instance().load("model/transformer_lm.yaml")))

    assert not built
    assert node.node == {"_name": "preset", "layers": 6}
    assert len(built) == 1
