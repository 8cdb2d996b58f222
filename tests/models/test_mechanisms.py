"""What follows from the facts that a mechanism states, and what is refused before training."""

from __future__ import annotations

import pickle
from argparse import Namespace
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.models import ARCH_CONFIG_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.modules import MultiheadAttention
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from omegaconf import OmegaConf
from torch import nn

import fairseq_ctxgates.mechanisms
from fairseq_ctxgates.context_gates.mechanism import ContextGateConfig, ContextGates
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.inter_sentence.mechanism import InterSentenceGating
from fairseq_ctxgates.mechanism import TRANSFORMER, Mechanism
from fairseq_ctxgates.mechanisms import register_mechanism
from fairseq_ctxgates.models.context_transformer import TRANSFORMER_ENCODER_OUT
from fairseq_ctxgates.models.decoder_layer import ContextDecoderLayer
from fairseq_ctxgates.models.mechanism_parts import RESERVED, encoder_additions
from fairseq_ctxgates.models.transformer_config import option_values
from fairseq_ctxgates.models.warm_start import warm_start
from fairseq_ctxgates.parts import Part
from tests.helpers.models import DICTIONARY, TINY, build_model, make_batch, make_task, save_parameters
from tests.helpers.reference_rnnsearch import build_rnnsearch

BATCH = make_batch(sources=[[4, 5, 6], [9, 10]], targets=[[14, 15, 16], [17, 18]])["net_input"]
NULL: dict[str, Any] = {"inter_sentence_ablation": "null"}


# --- options


@pytest.mark.parametrize("mechanism", ["context", "rcg", "isg", "fra", "car"])
def test_presets_have_the_sizes_of_fairseqs(mechanism: str) -> None:
    sizes = {"": "", "_tiny": "_tiny", "_iwslt": "_iwslt_de_en", "_big": "_vaswani_wmt_en_de_big"}
    for size, of_fairseq in sizes.items():
        expected = Namespace()
        ARCH_CONFIG_REGISTRY[f"transformer{of_fairseq}"](expected)
        found = option_values(MODEL_DATACLASS_REGISTRY[f"{mechanism}_transformer{size}"]())
        names = vars(expected).keys() & found.keys()
        assert len(names) > 20
        assert {name: found[name] for name in names} == {name: getattr(expected, name) for name in names}


def test_an_override_is_refused_where_no_model_reads_it() -> None:
    """In an ensemble one model may read it, as the ablation of one of the models; training is always refused."""
    task = make_task(model_overrides=str(NULL))
    build_model("transformer", task, from_checkpoint=True)
    with pytest.raises(UserError, match="--model-overrides: nothing reads 'inter_sentence_ablation' from there: check"):
        task.build_generator([], Namespace())
    build_model("context_transformer", task, from_checkpoint=True, **NULL)
    with pytest.raises(UserError, match="--model-overrides: --inter-sentence-ablation null would do nothing: it needs"):
        task.build_generator([], Namespace())
    isg = build_model("isg_transformer", task, from_checkpoint=True, **NULL)
    task.build_generator([isg], Namespace())
    with pytest.raises(UserError, match="--inter-sentence-gate, which --arch isg_transformer sets"):
        build_model("context_transformer", **NULL)


@pytest.mark.parametrize("ablation", ["closed", "random"])
def test_an_ablation_that_leaves_parameters_without_gradients_is_not_trained(ablation: str) -> None:
    config = OmegaConf.create({"_name": "isg_transformer", **TINY, "inter_sentence_ablation": ablation})
    make_task().build_model(config, from_checkpoint=True)
    with pytest.raises(UserError, match="give it to a trained model by --model-overrides"):
        make_task().build_model(config)


def test_a_warm_start_needs_the_task_that_loads_it(tmp_path: Path) -> None:
    """Another task, which knows no warm start, trains no model that was to have one; a loaded model needs none."""
    task = TranslationTask(TranslationConfig(), DICTIONARY, DICTIONARY)
    model: Any = build_model("rcg_transformer", task, warm_start=str(tmp_path / "none.pt"))
    with pytest.raises(UserError, match="--warm-start .*none.pt: give --task context_translation, which loads it"):
        model(**BATCH)
    model.load_state_dict(model.state_dict())
    model(**BATCH)


def test_training_goes_on_from_a_plain_model_by_a_warm_start_only() -> None:
    """fairseq's own options for this load a model strictly."""
    plain = build_model("context_transformer").state_dict()
    model = build_model("rcg_transformer", inter_sentence_gate=True)
    with pytest.raises(
        UserError, match="no parameters of inter_sentence, context_gates: .* give --warm-start CHECKPOINT"
    ):
        model.load_state_dict(plain)
    half = {name: tensor for name, tensor in model.state_dict().items() if ".inter_sentence." not in name}
    with pytest.raises(UserError, match=r"has no \S+\.inter_sentence\.\S+: .* give --warm-start CHECKPOINT and"):
        model.load_state_dict(half)


@pytest.mark.parametrize("option", ["encoder_layers", "decoder_layers", "encoder_ffn_embed_dim"])
def test_a_warm_start_that_would_be_refused_is_not_advised(option: str) -> None:
    sizes: Any = {option: 2}
    plain = build_model("context_transformer", **sizes).state_dict()
    with pytest.raises(RuntimeError, match="Missing key") as error:
        build_model("rcg_transformer").load_state_dict(plain)
    assert "--warm-start" not in str(error.value)


def test_parameters_that_the_options_take_away_are_named() -> None:
    """As ``--model-overrides`` may; other misfits are torch's to name."""
    gated, plain = build_model("rcg_transformer").state_dict(), build_model("context_transformer")
    with pytest.raises(
        UserError,
        match=r"has decoder\.layers\.0\.connection\.\S+, which .* in --model-overrides, or, .* another --save-dir",
    ):
        plain.load_state_dict(gated)
    del gated["decoder.layers.0.fc1.weight"]
    with pytest.raises(RuntimeError, match="Missing key"):
        plain.load_state_dict(gated)


@pytest.mark.parametrize(("side", "other"), [("encoder", "source"), ("decoder", "target")])
def test_a_checkpoint_of_another_dictionary(side: str, other: str) -> None:
    """Its size says so; torch would name a parameter."""
    model = build_model("rcg_transformer")
    table, state = f"{side}.embed_tokens.weight", model.state_dict()
    types = len(state[table])
    state[table] = state[table][:-1]
    message = f"with {types - 1} {other} types, and the {other} dictionary of the data has {types}: give the data dir"
    with pytest.raises(UserError, match=message):
        model.load_state_dict(state)


def test_an_ablation_of_a_mechanism_that_is_off_is_refused_by_fairseqs_own_task_too() -> None:
    """As of ``--model-overrides`` in fairseq-generate, whose task is ``translation`` by default."""
    trained = build_model("rcg_transformer").state_dict()
    task = TranslationTask(TranslationConfig(), DICTIONARY, DICTIONARY)
    model: Any = build_model("rcg_transformer", task, inter_sentence_ablation="closed")
    with pytest.raises(UserError, match="--inter-sentence-ablation closed would do nothing"):
        model.load_state_dict(trained)


def test_layers_to_keep_do_not_move_a_mechanism() -> None:
    kept: dict[str, Any] = {"decoder_layers": 4, "decoder_layers_to_keep": "0,3"}
    assert len(build_model("rcg_transformer", **kept).layers_that_return("context_gates")) == 2
    with pytest.raises(UserError, match=r"--decoder-layers-to-keep renumbers the layers.* \(--relation-layers;"):
        build_model("fra_transformer", **kept)
    # Without parameters a fusion would be loaded into whatever layer is left.
    top: dict[str, Any] = {"decoder_layers": 2, "decoder_layers_to_keep": "0", "relation_fusion": "linear"}
    with pytest.raises(UserError, match="--decoder-layers-to-keep renumbers the layers"):
        build_model("fra_transformer", **top)
    build_model("fra_transformer", **top, relation_layers="all")
    with pytest.raises(UserError, match="the model has layers 1 to 2"):
        build_model("isg_transformer", inter_sentence_layers="4", **kept)


def test_a_connection_in_some_layers_keeps_them_from_being_renumbered(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a mechanism of a user's own may have it."""
    everywhere = ContextGates.connection

    def at_the_bottom(self: ContextGates, layer: int, options: Any) -> Any:
        return everywhere(self, layer, options) if layer == 1 else None

    monkeypatch.setattr(ContextGates, "connection", at_the_bottom)
    build_model("rcg_transformer")
    with pytest.raises(UserError, match="--decoder-layers-to-keep renumbers the layers"):
        build_model("rcg_transformer", decoder_layers_to_keep="0,1")


# --- names


@dataclass
class OtherConfig(FairseqDataclass):
    other_switch: bool = False


def mechanism(**facts: Any) -> type:
    return type("Other", (Mechanism,), {"name": "other", "configs": {TRANSFORMER: OtherConfig}, **facts})


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"name": "relations"}, "Other and FactualRelations both have the name 'relations'"),
        ({"configs": {TRANSFORMER: ContextGateConfig}}, "Other and ContextGates both have --context-gate"),
        (
            {"architectures": {TRANSFORMER: {"rcg_transformer": {"other_switch": True}}}},
            "Other and ContextGates both have --arch rcg_transformer",
        ),
    ],
)
def test_names_that_are_taken(facts: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("models", "tasks"):
        monkeypatch.delitem(fairseq_ctxgates.mechanisms.sys.modules, f"fairseq_ctxgates.{module}")
    with pytest.raises(UserError, match=message):
        register_mechanism(mechanism(**facts))


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("tensors", "first_step"),
        ("tensors", "other_out"),
        ("tensors", "other_padding_mask"),
        ("tensors", "src_lengths"),
        ("source_masks", "encoder"),
        ("sentences", "encoder"),
        ("sentences", "self_attn"),
    ],
)
def test_names_of_an_encoders_output_that_are_taken(what: str, name: str) -> None:
    other = mechanism(switch="other_switch", **{what: lambda self, _: {name: torch.zeros(2)}})(OtherConfig(True), 1)
    with pytest.raises(ValueError, match=f"Other.{what}: the name '{name}' is taken"):
        encoder_additions([other], None, TRANSFORMER_ENCODER_OUT)  # type: ignore[arg-type]


def test_every_argument_of_a_decoder_layer_is_taken() -> None:
    arguments = set(signature(ContextDecoderLayer.forward).parameters) - {"added"}
    assert arguments == RESERVED | (arguments & TRANSFORMER_ENCODER_OUT)


def test_rnnsearch_has_no_attention_in_its_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InterSentenceGating, "encoder_attention", lambda self: MultiheadAttention)
    with pytest.raises(UserError, match="InterSentenceGating.encoder_attention: RNNSearch's encoder has no attention"):
        build_rnnsearch("isg_rnnsearch")


def test_rnnsearch_encodes_nothing_under_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InterSentenceGating, "source_masks", lambda self, _: {"one": torch.ones(1, 2, 2)})
    tokens = torch.tensor([[5, 2]])
    with pytest.raises(UserError, match=r"RNNSearch cannot encode the source under a mask \(one\)"):
        build_rnnsearch("isg_rnnsearch").encoder(tokens, preceding_tokens=tokens)


def test_two_mechanisms_may_not_add_the_same() -> None:
    added = {what: lambda self, _: {"one": torch.zeros(2)} for what in ("source_masks", "sentences")}
    others = [mechanism(switch="other_switch", **{what: give})(OtherConfig(True), 1) for what, give in added.items()]
    with pytest.raises(ValueError, match="Other.sentences: the name 'one' is taken"):
        encoder_additions(others, None, TRANSFORMER_ENCODER_OUT)  # type: ignore[arg-type]


# --- warm start


class TiedPart(Part):
    """A part with a buffer, and with one parameter under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(2))
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        self.second.weight = self.first.weight


def test_everything_in_a_part_is_the_mechanisms_own(tmp_path: Path) -> None:
    plain, model = build_model("context_transformer"), build_model("context_transformer")
    model.decoder.layers[0].source_parts["tied"] = TiedPart()
    prefix = "decoder.layers.0.source_parts.tied."
    own = {"table", "first.weight", "first.bias", "second.weight", "second.bias"}
    assert set(model.mechanism_parameters()) == {prefix + name for name in own}
    warm_start(model, save_parameters(plain, tmp_path / "plain.pt"), Namespace())
    assert torch.equal(model.encoder.embed_tokens.weight, plain.encoder.embed_tokens.weight)


@pytest.mark.parametrize(
    ("arch", "options", "part"),
    [
        ("isg_transformer", {}, "inter_sentence"),
        ("fra_transformer", {"separate_relation_attention": True, "relation_layers": "all"}, "relations"),
    ],
)
def test_attention_of_a_part_starts_as_the_layers_attention_over_the_sentence(
    arch: str, options: dict[str, Any], part: str, tmp_path: Path
) -> None:
    plain = build_model("transformer")
    model = build_model(arch, warm_start=save_parameters(plain, tmp_path / "plain.pt"), **options)
    for layer, of_plain in zip(model.decoder.layers, plain.decoder.layers):
        found = layer.source_parts[part].attention.state_dict()
        expected = of_plain.encoder_attn.state_dict()
        assert found.keys() == expected.keys() and len(expected) == 8
        for name, parameter in expected.items():
            assert torch.equal(found[name], parameter), name


@pytest.mark.parametrize(
    "options",
    [
        {"encoder_attention_heads": 2},
        {"decoder_attention_heads": 2},
        {"activation_fn": "gelu"},
        {"no_scale_embedding": True},
        {"no_token_positional_embeddings": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_no_warm_start_from_a_model_that_computes_something_else(options: dict[str, Any], tmp_path: Path) -> None:
    """No parameter's shape shows it."""
    sinusoidal = {"encoder_learned_pos": False, "decoder_learned_pos": False}  # which have no parameters
    trained: dict[str, Any] = {**TINY, **sinusoidal, "activation_fn": "relu", "no_scale_embedding": False}
    trained["no_token_positional_embeddings"] = False
    plain = build_model("context_transformer", **trained)
    torch.save({"model": plain.state_dict(), "cfg": {"model": trained}}, tmp_path / "plain.pt")
    model = build_model("rcg_transformer", warm_start=str(tmp_path / "plain.pt"), **trained)
    assert model.warm_started_from
    with pytest.raises(UserError, match=f"trained with --{next(iter(options)).replace('_', '-')} "):
        build_model("rcg_transformer", warm_start=str(tmp_path / "plain.pt"), **{**trained, **options})


@pytest.mark.parametrize(
    ("arch", "trained", "options"),
    [
        ("ctxgate_rnnsearch", {"context_gate": "both"}, {"context_gate": "target"}),
        ("fra_transformer", {"relation_fusion": "linear", "relation_lambda": 0.4}, {"relation_lambda": 0.2}),
        (
            "fra_transformer",
            {"relation_fusion": "gate", "relation_mask_operation": "fill"},
            {"relation_mask_operation": "multiply"},
        ),
        ("fra_transformer", {"relation_fusion": "gate"}, {"relation_fusion": "concat-gate"}),
        ("car_transformer", {"smoothing": "ccwm", "smoothing_window": 2}, {"smoothing_window": 4}),
        ("car_transformer", {"smoothing": "fcwm", "smoothing_words": "all"}, {"smoothing_words": "unknown"}),
        ("car_transformer", {"smoothing": "ccwm", "smoothing_combine": "add"}, {"smoothing_combine": "replace"}),
        ("car_transformer", {"smoothing": "ccwm", "smoothing_activation": "tanh"}, {"smoothing_activation": "sigmoid"}),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value,
)
def test_no_warm_start_from_a_mechanism_that_computes_something_else(
    arch: str, trained: dict[str, Any], options: dict[str, Any], tmp_path: Path
) -> None:
    build = build_rnnsearch if arch.endswith("rnnsearch") else build_model
    torch.save({"model": build(arch, **trained).state_dict(), "cfg": {"model": trained}}, tmp_path / "trained.pt")
    start: dict[str, Any] = {"warm_start": str(tmp_path / "trained.pt")}
    assert build(arch, **trained, **start).warm_started_from
    (name,) = options
    with pytest.raises(UserError, match=f"trained with --{name.replace('_', '-')} {trained[name]}, and the model"):
        build(arch, **{**trained, **options}, **start)


@pytest.mark.parametrize(("words", "combine"), [("unknown", "replace"), ("all", "add")])
def test_a_warm_start_takes_a_default_that_is_written_out(words: str, combine: str, tmp_path: Path) -> None:
    trained: dict[str, Any] = {"smoothing": "fcwm", "smoothing_words": words, "smoothing_combine": None}
    model = build_model("car_transformer", **trained)
    torch.save({"model": model.state_dict(), "cfg": {"model": trained}}, tmp_path / "trained.pt")
    start: dict[str, Any] = {"warm_start": str(tmp_path / "trained.pt")}
    assert build_model("car_transformer", **start, **{**trained, "smoothing_combine": combine}).warm_started_from
    other = {"replace": "add", "add": "replace"}[combine]
    with pytest.raises(UserError, match=f"trained with --smoothing-combine {combine}, and the model has {other}"):
        build_model("car_transformer", **start, **{**trained, "smoothing_combine": other})


@pytest.mark.parametrize(("trained_at", "same", "other"), [(None, "3", "all"), ("1-3", "all", None), ("1", "1,1", "3")])
def test_linear_fusion_is_warm_started_in_the_same_layers(
    trained_at: str | None, same: str, other: str | None, tmp_path: Path
) -> None:
    """It has no parameters whose names would name the layers."""
    trained: dict[str, Any] = {"relation_fusion": "linear", "decoder_layers": 3, "relation_layers": trained_at}
    model = build_model("fra_transformer", **trained)
    torch.save({"model": model.state_dict(), "cfg": {"model": trained}}, tmp_path / "trained.pt")
    start: dict[str, Any] = {"warm_start": str(tmp_path / "trained.pt")}
    assert build_model("fra_transformer", **{**trained, "relation_layers": same}, **start).warm_started_from
    with pytest.raises(UserError, match="trained with --relation-layers [0-9,]+, and the model has [0-9,]+"):
        build_model("fra_transformer", **{**trained, "relation_layers": other}, **start)


@pytest.mark.parametrize("arch", ["context_transformer", "isg_transformer", "rcg_transformer"])
def test_a_whole_model_can_be_pickled(arch: str) -> None:
    """As users do that send one to another process."""
    model = build_model(arch)
    copy = pickle.loads(pickle.dumps(model))
    assert type(copy) is type(model)
    assert copy.state_dict().keys() == model.state_dict().keys()
