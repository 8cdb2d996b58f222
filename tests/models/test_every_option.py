"""Every option does something or is refused: of the mechanisms, of the criterions, and in --model-overrides.

The options come from the dataclasses, so that a new one is tested without a line here: given another value than its
default, the model's output, the loss or what is logged differs from that without the option, or the option is refused
before training. tests/streams/test_every_stream_option.py does the same for the streams.
"""

from __future__ import annotations

import functools
import re
from argparse import Namespace
from dataclasses import fields
from typing import Any, Collection, Iterable, Iterator, Tuple

import pytest
import torch
from fairseq.criterions import CRITERION_DATACLASS_REGISTRY, CRITERION_REGISTRY
from fairseq.models import MODEL_DATACLASS_REGISTRY
from omegaconf import OmegaConf

from fairseq_ctxgates.configuration import as_flag, plain
from fairseq_ctxgates.context_gates.gate_labels import SOURCE, TARGET
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.mechanism import TRANSFORMER
from fairseq_ctxgates.mechanisms import all_mechanisms
from fairseq_ctxgates.models.transformer_config import DecoderNormOrderConfig
from fairseq_ctxgates.models.warm_start import WarmStartConfig
from fairseq_ctxgates.tasks.context_translation import ContextTranslationConfig
from tests.helpers.models import PAD, make_batch, make_side_inputs, make_task
from tests.helpers.options import ARCHITECTURES, other_values

pytestmark = pytest.mark.slow

SOURCES, TARGETS = [[4, 3, 6, 7, 8, 3, 10], [9, 10], [11, 3, 13]], [[14, 3, 16], [17, 3, 19, 4, 5], [6]]
BATCH = make_batch(SOURCES, TARGETS)
INPUTS = make_side_inputs(BATCH["net_input"]["src_tokens"])
# The architectures of which every option is tested, fairseq's too; of the others those of the mechanisms.
PLAIN = ("context_transformer_tiny", "rnnsearch_tiny")
Case = Tuple[str, str, Any]  # an architecture, an option, and a value

# --- the options of mechanisms, in training ---------------------------------------------------------------------------

# What an option needs beside it to do something, tried after the option alone.
COMPANIONS: dict[str, dict[str, Any]] = {
    "relation_lambda": {"relation_fusion": "linear"},
    "smoothing_width": {"smoothing": "ccwm"},
}
# Values that change nothing and are not refused, with the reason.
SAME_AS_DEFAULT = {
    ("car_transformer_tiny", "smoothing_combine", "replace"): "what the default is for unknown words",
    ("car_transformer_align_tiny", "smoothing_combine", "replace"): "what the default is for unknown words",
    ("car_rnnsearch_tiny", "smoothing_combine", "replace"): "what the default is for unknown words",
    ("isg_rnnsearch_tiny", "inter_sentence_layers", "1"): "RNNSearch has one layer, so that it means all",
}


def cases() -> Iterator[Case]:
    """Each option of each mechanism on each architecture, with each value but the architecture's own."""
    for arch, backbone in ARCHITECTURES.items():
        for mechanism in all_mechanisms():
            for option in fields(mechanism.configs[backbone]) if backbone in mechanism.configs else ():
                if option.name != "_name":
                    own = getattr(MODEL_DATACLASS_REGISTRY[arch](), option.name)
                    yield from ((arch, option.name, value) for value in other_values(option) if value != own)


def without(exceptions: Collection[Case], all_cases: Iterable[Case]) -> list[Case]:
    return [case for case in all_cases if case not in exceptions]


def logits(model: Any) -> torch.Tensor:
    """Of a batch, in evaluation mode."""
    inputs = {name: INPUTS[name] for name in model.input_names if name in INPUTS}
    with torch.no_grad():
        found: torch.Tensor = model.eval()(**BATCH["net_input"], **inputs)[0][BATCH["target"].ne(PAD)]
    return found


@functools.lru_cache(maxsize=None)
def output(arch: str, **options: Any) -> torch.Tensor:
    torch.manual_seed(1)
    return logits(make_task().build_model(OmegaConf.create({"_name": arch, **options})))


def differs(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return found.shape != expected.shape or not torch.equal(found, expected)


@pytest.mark.parametrize(("arch", "option", "value"), without(SAME_AS_DEFAULT, cases()))
def test_it_does_something_or_is_refused(arch: str, option: str, value: Any) -> None:
    try:
        found = output(arch, **{option: value})
    except UserError as error:
        assert as_flag(option) in str(error) or "ablation" in str(error)
        return
    assert differs(found, output(arch))


@pytest.mark.parametrize("option", sorted({option for _, option, _ in cases()} - COMPANIONS.keys()))
def test_some_architecture_takes_it(option: str) -> None:
    def is_taken(arch: str, value: Any) -> bool:
        try:
            output(arch, **{option: value})
        except UserError:
            return False
        return True

    assert any(is_taken(arch, value) for arch, name, value in cases() if name == option)


@pytest.mark.parametrize(("arch", "option", "value"), list(SAME_AS_DEFAULT))
def test_exceptions_say_what_is_so(arch: str, option: str, value: Any) -> None:
    assert torch.equal(output(arch, **{option: value}), output(arch))


@pytest.mark.parametrize(("option", "companions"), COMPANIONS.items())
def test_what_is_refused_alone_works_with_what_it_needs(option: str, companions: dict[str, Any]) -> None:
    every = [field for mechanism in all_mechanisms() for field in fields(mechanism.configs[TRANSFORMER])]
    (field,) = (field for field in every if field.name == option)
    changed = output("context_transformer_tiny", **companions, **{option: other_values(field)[0]})
    assert not torch.equal(changed, output("context_transformer_tiny", **companions))


# --- the options of the backbones, in training -----------------------------------------------------------------------

# Values that change nothing and are not refused, with the reason.
SAME_IN_TRAINING = {
    ("context_transformer_tiny", "decoder_norm_order", "post"): "what the default is",
    ("rnnsearch_tiny", "max_source_positions", 1025): "the sentences are shorter",
    ("rnnsearch_tiny", "max_target_positions", 1025): "the sentences are shorter",
}
OWN_OPTIONS = {
    "context_transformer_tiny": (*fields(DecoderNormOrderConfig), *fields(WarmStartConfig)),
    "rnnsearch_tiny": fields(MODEL_DATACLASS_REGISTRY["rnnsearch_tiny"]),
}


def training_cases() -> Iterator[Case]:
    """Each option of this package that is not a mechanism's, on each backbone."""
    of_mechanisms = {case[1] for case in cases()}
    for arch, options in OWN_OPTIONS.items():
        for option in options:
            if option.name not in {"_name", *of_mechanisms}:
                yield from ((arch, option.name, value) for value in other_values(option))


def training_output(arch: str, **options: Any) -> torch.Tensor:
    """The logits of a batch in training, dropout included."""
    torch.manual_seed(1)
    model = make_task().build_model(OmegaConf.create({"_name": arch, **options}))
    torch.manual_seed(2)
    found: torch.Tensor = model.train()(**BATCH["net_input"])[0].detach()
    return found


@pytest.mark.parametrize(("arch", "option", "value"), training_cases())
def test_an_option_of_a_backbone_does_something_or_is_refused(arch: str, option: str, value: Any) -> None:
    try:
        found = training_output(arch, **{option: value})
    except UserError as error:
        assert as_flag(option) in str(error)
        return
    assert differs(found, training_output(arch)) == ((arch, option, value) not in SAME_IN_TRAINING)


# --- --model-overrides ------------------------------------------------------------------------------------------------

NOT_DECODING = "of training"
NOT_READ = "fairseq's, and its transformer reads it only beside another option, or not at all"
# Keys that change nothing and are not refused, with the reason; of the architectures without a mechanism.
WITHOUT_EFFECT = {
    **dict.fromkeys(("dropout", "embedding_dropout", "hidden_dropout", "output_dropout"), NOT_DECODING),
    **dict.fromkeys(
        ("attention_dropout", "activation_dropout", "relu_dropout", "adaptive_softmax_dropout"), NOT_DECODING
    ),
    **dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop"), NOT_DECODING),
    **dict.fromkeys(("checkpoint_activations", "offload_activations", "min_params_to_wrap"), NOT_DECODING),
    **dict.fromkeys(("max_source_positions", "max_target_positions"), "these sentences are shorter"),
    **dict.fromkeys(
        ("adaptive_input", "decoder_input_dim", "char_inputs", "export", "no_decoder_final_norm"), NOT_READ
    ),
    **dict.fromkeys(("adaptive_softmax_factor", "tie_adaptive_weights", "tie_adaptive_proj"), NOT_READ),
    **dict.fromkeys(("quant_noise_pq_block_size", "base_sublayers", "base_shuffle"), NOT_READ),
}
SAME_WHEN_OVERRIDDEN = {
    **SAME_AS_DEFAULT,
    ("context_transformer_tiny", "decoder_norm_order", "post"): "what the default is",
}


OPTIONS_OF_FAIRSEQ = {option.name for option in fields(MODEL_DATACLASS_REGISTRY["context_transformer_tiny"])} - {
    *(field.name for mechanism in all_mechanisms() for field in fields(mechanism.configs[TRANSFORMER])),
    *(field.name for config in (DecoderNormOrderConfig, WarmStartConfig) for field in fields(config)),
}
# What fairseq raises at other values of its own options.
RAISED_BY_FAIRSEQ = {
    **dict.fromkeys(("encoder_embed_path", "decoder_embed_path"), "No such file or directory"),
    **dict.fromkeys(("encoder_embed_dim", "encoder_attention_heads"), "embed_dim must be divisible by num_heads"),
    **dict.fromkeys(("decoder_embed_dim", "decoder_attention_heads"), "embed_dim must be divisible by num_heads"),
    "adaptive_softmax_cutoff": "This version of the model is no longer supported",
    "quant_noise_scalar": "NVIDIA|CUDA",  # it is for a GPU only
}


def override_cases() -> Iterator[Case]:
    """As :func:`cases`, and every option of the architectures without a mechanism."""
    yield from (case for case in cases() if case[0] not in PLAIN)
    for arch in PLAIN:
        for option in fields(MODEL_DATACLASS_REGISTRY[arch]):
            if option.name != "_name":
                yield from ((arch, option.name, value) for value in other_values(option))


def is_without_effect(case: Case) -> bool:
    return case in SAME_WHEN_OVERRIDDEN or (case[0] in PLAIN and case[1] in WITHOUT_EFFECT)


def config(arch: str, **options: Any) -> Any:
    """The configuration that a checkpoint keeps, with these options."""
    defaults = vars(MODEL_DATACLASS_REGISTRY[arch]())
    return OmegaConf.create({**{name: plain(value) for name, value in defaults.items()}, "_name": arch, **options})


@functools.lru_cache(maxsize=None)
def parameters(arch: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    state: dict[str, torch.Tensor] = make_task().build_model(config(arch)).state_dict()
    return state


@functools.lru_cache(maxsize=None)
def decode(arch: str, **overrides: Any) -> torch.Tensor:
    """The logits of a checkpoint's model, after what fairseq-generate does with ``--model-overrides``."""
    task = make_task(model_overrides=str(overrides))
    model = task.build_model(config(arch, **overrides), from_checkpoint=True)
    model.load_state_dict(dict(parameters(arch)), strict=True)
    task.build_generator([model], Namespace())
    return logits(model)


def is_refused(error: Exception, option: str) -> bool:
    """Whether it is an error of ours, one of fairseq's strict loading, or what fairseq raises at this option."""
    expected = "|".join(filter(None, (r"Error\(s\) in loading state_dict", RAISED_BY_FAIRSEQ.get(option))))
    if isinstance(error, UserError):
        return any(text in str(error) for text in (as_flag(option), option, "the checkpoint's model has "))
    return re.search(expected, str(error)) is not None


@pytest.mark.parametrize(
    ("arch", "option", "value"), [case for case in override_cases() if not is_without_effect(case)]
)
def test_an_override_does_something_or_is_refused(arch: str, option: str, value: Any) -> None:
    try:
        found = decode(arch, **{option: value})
    except Exception as error:
        assert is_refused(error, option), error
        return
    assert differs(found, decode(arch))


@pytest.mark.parametrize(("arch", "option", "value"), [case for case in override_cases() if is_without_effect(case)])
def test_overrides_without_effect_have_none(arch: str, option: str, value: Any) -> None:
    assert torch.equal(decode(arch, **{option: value}), decode(arch))


@pytest.mark.parametrize(
    "option", [field for field in fields(ContextTranslationConfig) if field.name not in {"_name", *OPTIONS_OF_FAIRSEQ}]
)
def test_an_override_of_the_task_is_refused_where_the_command_line_has_it(option: Any) -> None:
    """fairseq-generate and fairseq-interactive read the task's options from the command line only."""
    (value, *_) = other_values(option)
    with pytest.raises(UserError, match=f"--model-overrides: nothing reads '{option.name}' from there"):
        decode("context_transformer_tiny", **{option.name: value})


@pytest.mark.parametrize("key", ["beam", "max_tokens", "arch", "_name", "gate_lambda", "dropuot"])
def test_other_overrides_are_refused(key: str) -> None:
    task = make_task(model_overrides=str({key: 1}))
    task.build_model(config("rcg_transformer_tiny"), from_checkpoint=True)
    with pytest.raises(UserError, match=f"--model-overrides: nothing reads '{key}' from there"):
        task.build_generator([], Namespace())


# --- criterions -------------------------------------------------------------------------------------------------------

CRITERIONS = {
    name: CRITERION_DATACLASS_REGISTRY[name]
    for name, criterion in CRITERION_REGISTRY.items()
    if criterion.__module__.startswith("fairseq_ctxgates.")
}
LABELS = [[SOURCE, TARGET, SOURCE], [TARGET, SOURCE, SOURCE, TARGET, TARGET], [SOURCE]]
LABELLED_BATCH = make_batch(SOURCES, TARGETS, LABELS)
INTERPOLATED = {"sentence_avg": False}  # fairseq's, from another group of its configuration
# An architecture, a criterion's option and a value that changes nothing, with the reason.
SAME_FOR_A_CRITERION = {
    ("ctxgate_rnnsearch_tiny", "regularized_layers", "1"): "RNNSearch has one layer, so that it means all",
    ("ctxgate_rnnsearch_tiny", "gate_layer_reduction", "mean"): "RNNSearch has one layer, whose sum is its mean",
}


def criterion_cases() -> Iterator[Case]:
    for name, dataclass in CRITERIONS.items():
        for option in fields(dataclass):
            if option.name in INTERPOLATED:
                yield name, option.name, not INTERPOLATED[option.name]
            elif option.name != "_name":
                yield from ((name, option.name, value) for value in other_values(option))


@functools.lru_cache(maxsize=None)
def train(arch: str, criterion: str, **options: Any) -> Any:
    """The loss of a batch in training, its size, what is logged, and the gradient."""
    torch.manual_seed(1)
    task = make_task(load_gate_labels=True)
    model = task.build_model(OmegaConf.create({"_name": arch, "dropout": 0}))
    built = task.build_criterion(OmegaConf.create({"_name": criterion, **INTERPOLATED, **options}))
    inputs = {name: INPUTS[name] for name in model.input_names if name in INPUTS}
    batch = {**LABELLED_BATCH, "net_input": {**LABELLED_BATCH["net_input"], **inputs}}
    loss, size, log = built.train()(model.train(), batch)
    loss.backward()
    gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
    return loss.item(), size, {key: float(value) for key, value in log.items()}, gradient.tolist()


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(("criterion", "option", "value"), list(criterion_cases()))
def test_an_option_of_a_criterion_does_something_or_is_refused(
    arch: str, criterion: str, option: str, value: Any
) -> None:
    try:
        found = train(arch, criterion, **{option: value})
    except UserError as error:
        assert "--criterion" in str(error) or as_flag(option) in str(error)
        return
    assert (found != train(arch, criterion)) == ((arch, option, value) not in SAME_FOR_A_CRITERION)


def test_the_criterions_of_the_package_are_tested() -> None:
    assert "gate_regularized_cross_entropy" in CRITERIONS
