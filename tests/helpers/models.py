"""Tiny models, made as fairseq-train makes them, and batches for them. Shared by the tests."""

from __future__ import annotations

import inspect
from argparse import Namespace
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary, data_utils
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from omegaconf import OmegaConf
from torch import Tensor

import fairseq_ctxgates.models  # noqa: F401  registers the architectures
from fairseq_ctxgates.context_gates.gate_labels import IGNORE
from fairseq_ctxgates.inter_sentence.preceding_sentences import group_sentences
from fairseq_ctxgates.tasks.context_translation import ContextTranslationConfig, ContextTranslationTask

DICTIONARY = Dictionary()
for _number in range(16):
    DICTIONARY.add_symbol(f"w{_number}")
PAD, EOS = DICTIONARY.pad(), DICTIONARY.eos()
WORDS = range(DICTIONARY.nspecial, len(DICTIONARY))  # 4 to 19

# Three decoder layers, so that a first, a middle and a last one exist; four widths that cannot be taken for each other.
TINY = {
    "encoder_embed_dim": 12,
    "encoder_ffn_embed_dim": 20,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_layers": 1,
    "decoder_layers": 3,
    "encoder_learned_pos": True,
    "decoder_learned_pos": True,
    "dropout": 0.0,
    "max_source_positions": 32,
    "max_target_positions": 32,
}
RETURNED_GATES = ("context_gates", "inter_sentence_gates")
NORM_ORDERS = ("post", "pre", "inner")
# A test that runs fairseq's own Transformer over padding.
runs_stock_encoder = pytest.mark.xfail(
    "can_use_fastpath" in inspect.getsource(TransformerEncoderLayerBase) and torch.__version__ >= "2",
    raises=RuntimeError,
    strict=True,
    reason="fairseq 0.12.2's encoder layer calls torch's fast path in a way that torch 2 refuses",
)
# A test that multiplies in half precision.
multiplies_float16 = pytest.mark.skipif(torch.__version__ < "2", reason="torch 1 multiplies no float16 on a CPU")
# Word ids of three sentences, without the end of sentence; each source and each target has another length.
SOURCES = [[4, 5, 6, 7, 8], [9, 10], [11, 12, 13]]
TARGETS = [[14, 15, 16], [17, 18, 19, 4, 5], [6]]


def make_task(**options: Any) -> ContextTranslationTask:
    """The task with the options' own defaults, between two languages of one dictionary, without data."""
    given = {"data": "data-bin", "source_lang": "de", "target_lang": "en", "model_overrides": "{}", "seed": 1}
    config = ContextTranslationConfig(**{**given, **options})
    return ContextTranslationTask(config, DICTIONARY, DICTIONARY)


def build_model(
    arch: str, task: ContextTranslationTask | None = None, from_checkpoint: bool = False, **options: Any
) -> Any:
    """A model as training begins with it, or as a checkpoint is loaded into it.

    Args:
        arch: ``transformer`` or ``transformer_align``, which are fairseq's, or an architecture of ours
        options: model options that differ from ``TINY``
    """
    from_checkpoint = from_checkpoint or is_test_time_ablation(options)
    options = {**TINY, **options}
    is_fairseqs = arch.startswith("transformer")
    config = Namespace(arch=arch, **options) if is_fairseqs else OmegaConf.create({"_name": arch, **options})
    return (task or make_task()).build_model(config, from_checkpoint)


def is_test_time_ablation(options: Mapping[str, Any]) -> bool:
    """Whether the options name an ablation that leaves parameters without gradients, which training refuses."""
    return options.get("inter_sentence_ablation") in ("closed", "random")


def make_model(arch: str, task: ContextTranslationTask | None = None, seed: int = 1, **options: Any) -> Any:
    """As :func:`build_model`, in float64 and evaluation mode, every parameter, also of the layer norms, random."""
    model = build_model(arch, task, **options).double().eval()
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if parameter.dim() > 1:
            parameter.data = noise * parameter.shape[-1] ** -0.5
        else:
            parameter.data = 0.3 * noise + float("norm" in name and name.endswith("weight"))
    return model


def save_parameters(model: Any, path: Path) -> str:
    """Write a checkpoint that has what a warm start reads, and return its name."""
    history = [{"optimizer_name": "Adam", "lr_scheduler_state": {}, "num_updates": 0}]
    extra_state = {"train_iterator": {"epoch": 1}}
    torch.save({"model": model.state_dict(), "optimizer_history": history, "extra_state": extra_state}, path)
    return str(path)


def norm_order_options(order: str) -> dict[str, Any]:
    """The options that give a decoder this norm order."""
    return {"decoder_norm_order": order, "decoder_normalize_before": order == "pre"}


def make_batch(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], labels: Sequence[Sequence[int]] | None = None
) -> dict[str, Any]:
    """A batch as fairseq's collater makes it: sources padded on the left, targets on the right.

    Args:
        sources: word ids of each sentence, without end of sentence
        targets: the same
        labels: the gate label of each target word, without that of end of sentence, which is IGNORE
    """

    def collate(rows: list[list[int]], padding: int = PAD, left_pad: bool = False) -> Tensor:
        return data_utils.collate_tokens([torch.tensor(row) for row in rows], padding, left_pad=left_pad)

    batch = {
        "id": torch.arange(len(sources)),
        "nsentences": len(sources),
        "ntokens": sum(len(target) + 1 for target in targets),
        "net_input": {
            "src_tokens": collate([[*source, EOS] for source in sources], left_pad=True),
            "src_lengths": torch.tensor([len(source) + 1 for source in sources]),
            "prev_output_tokens": collate([[EOS, *target] for target in targets]),
        },
        "target": collate([[*target, EOS] for target in targets]),
    }
    if labels is not None:
        batch["gate_labels"] = collate([[*row, IGNORE] for row in labels], padding=IGNORE)
    return batch


def make_side_inputs(source: Tensor) -> dict[str, Tensor]:
    """What side streams add to a batch of at most three sentences, by name: preceding sentences, and a mask under which
    words see themselves only and padding sees everything.

    Args:
        source: the batch's source tokens, (batch, source length)
    """
    return {
        "preceding_tokens": torch.tensor([[4, 5, EOS], [EOS, EOS, EOS], [6, 7, EOS]])[: len(source)],
        "relation_mask": torch.eye(source.size(1), dtype=torch.bool) | source.eq(PAD).unsqueeze(2),
    }


def make_decoding_batch() -> dict[str, Any]:
    """Sources of three lengths, so padded on the left; targets of one length, as while decoding. Both have unknown
    words."""
    unk = DICTIONARY.unk()
    return make_batch(
        sources=[[4, 5, unk, 7, 8], [9, 10], [unk, unk, 13]],
        targets=[[14, unk, 16, 17], [18, 19, 4, 5], [6, 7, unk, 9]],
    )


def vector(*components: float) -> Tensor:
    return torch.tensor(components, dtype=torch.float64)


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


def check_words(found: Tensor, expected: Any, is_word: Tensor) -> None:
    """The same values wherever there is a word: at padding they have no meaning."""
    np.testing.assert_allclose(found[is_word].numpy(), np.asarray(expected)[is_word.numpy()], rtol=0, atol=1e-10)


def check_gates(found: Mapping[int, Tensor], expected: Mapping[int, Any], is_word: Tensor) -> None:
    """The gates of each layer that has one. The model gives (target length, batch, embed dim).

    Args:
        expected: (batch, target length, embed dim), or None for a layer without a gate
    """
    expected = {number: gate for number, gate in expected.items() if gate is not None}
    assert found.keys() == expected.keys()
    for number, gate in expected.items():
        check_words(found[number].transpose(0, 1), gate, is_word)


def two_beams(model: Any, encoder_out: Any) -> tuple[Any, Tensor, Tensor, dict[str, Any]]:
    """Decode the first two words of three encoded sentences, with two beams each.

    Returns:
        the encoder's output for each beam, the sentence of each beam, its words, and the incremental state
    """
    rows = torch.tensor([0, 0, 1, 1, 2, 2])
    encoder_out = model.encoder.reorder_encoder_out(encoder_out, rows)
    prefixes = torch.tensor([[EOS, word] for word in range(4, 10)])
    state: dict[str, Any] = {}
    for step in (1, 2):
        model.decoder(prefixes[:, :step], encoder_out=encoder_out, incremental_state=state)
    return encoder_out, rows, prefixes, state


def check_step(found: tuple, expected: tuple, number: int) -> None:
    """The output of one decoding step equals that of decoding all at once, at the same position."""
    (logits, extra), (all_logits, all_extra) = found, expected
    assert_close(logits[:, 0], all_logits[:, number])
    assert_close(extra["attn"][0][:, 0], all_extra["attn"][0][:, number])
    for name in RETURNED_GATES:
        assert extra[name].keys() == all_extra[name].keys()
        for layer, gate in extra[name].items():
            assert_close(gate[0], all_extra[name][layer][number])


def check_gradients(loss: Callable[[], Tensor], parameters: Mapping[str, Any], rel: float) -> None:
    """The gradient of a loss, in float64, against finite differences, in a random direction of each parameter.

    Args:
        loss: computes it anew
        parameters: of which it is a function, by name
        rel: how far the two may lie apart, relative to the difference
    """
    loss().backward()
    generator = torch.Generator().manual_seed(4)
    for name, parameter in parameters.items():
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(sign * 1e-6 * direction)
                values.append(loss().item())
                parameter.sub_(sign * 1e-6 * direction)
        slope = (values[0] - values[1]) / 2e-6
        assert parameter.grad is not None, name
        assert (parameter.grad * direction).sum().item() == pytest.approx(slope, rel=rel, abs=1e-6), name


def keep_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """fairseq takes every softmax in float32, whatever the model's type; in float64, 1e-10 means something."""
    monkeypatch.setattr("fairseq.utils.softmax", lambda x, dim, onnx_trace=False: torch.softmax(x, dim))
    monkeypatch.setattr("fairseq.utils.log_softmax", lambda x, dim, onnx_trace=False: torch.log_softmax(x, dim))


# The sentences before each source, the nearest last; the first source has three, the second none.
BEFORE = [[[4, 5, 6, 7, EOS], [8, EOS], [9, 10, 11, EOS]], [[EOS, EOS, EOS]], [[12, 13, EOS], [14, 15, 16, EOS]]]


def preceding_inputs(before: list[list[list[int]]], left_pad: bool = True) -> dict[str, Any]:
    """What the stream adds to a batch whose sources have these sentences before them."""

    def collate(rows: list[list[int]], padding: int) -> Tensor:
        return data_utils.collate_tokens([torch.tensor(row) for row in rows], padding, left_pad=left_pad)

    tokens = collate([sum(sentences, []) for sentences in before], PAD)
    numbers = [[len(row) - place for place, one in enumerate(row) for _ in one] for row in before]
    distances = collate(numbers, 0)
    return {
        "preceding_tokens": tokens,
        "preceding_distances": distances,
        "preceding_groups": group_sentences(distances),
        "preceding_batch_size": len(before),
    }
