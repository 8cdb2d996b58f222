"""The preceding sentences of a split, and the attention of a sentence's target words over them."""

from __future__ import annotations

from typing import Dict, Optional, Sequence

import numpy as np
import torch
from torch import Tensor

from fairseq_ctxgates.analysis.inference import Inference, TranslationModel, as_context_model, required_streams
from fairseq_ctxgates.data.side_stream import Batch
from fairseq_ctxgates.inter_sentence.gate import ATTENTION
from fairseq_ctxgates.inter_sentence.mechanism import InterSentenceGating
from fairseq_ctxgates.inter_sentence.preceding_sentences import PrecedingSentences
from fairseq_ctxgates.inter_sentence.preceding_stream import PrecedingStream


def has_inter_sentence_gate(model: TranslationModel) -> bool:
    """Whether a model has an inter-sentence gate."""
    return PrecedingSentences.name in required_streams(model)


def preceding_stream(inference: Inference, split: str) -> PrecedingStream:
    """The preceding sentences of a loaded split."""
    streams = inference.task.dataset(split).streams
    (stream,) = (stream for stream in streams if isinstance(stream, PrecedingStream))
    return stream


def inter_sentence(inference: Inference) -> InterSentenceGating:
    """The model's inter-sentence mechanism, with its options."""
    model = as_context_model(inference.model)
    assert model is not None
    return model.mechanism(InterSentenceGating)


@torch.no_grad()
def read_attention(inference: Inference, batch: Batch) -> Dict[int, Tensor]:
    """For each layer number, the attention over the preceding sentences, (heads, batch, target length, preceding
    length)."""
    _, extra = inference.model(**batch["net_input"], returns=(ATTENTION,))
    weights: Dict[int, Tensor] = extra[ATTENTION]
    return weights


@torch.no_grad()
def preceding_attention(
    inference: Inference, batch: Batch, lengths: Sequence[int], own_length: int
) -> Optional[np.ndarray]:
    """The attention over the preceding sentences, averaged over heads. For the inter-sentence gate it is the mean over
    the layers; for concatenated sentences it is that of the layer whose attention the decoder returns.

    Args:
        batch: a batch of one sentence
        lengths: the lengths of its preceding sentences, including end of sentence, the nearest last
        own_length: the length of the sentence itself

    Returns:
        (target length, preceding words). The preceding words are those of all preceding sentences, or of the last ones
        if the model reads fewer or they were cut; ends of sentences and separators are left out. None if there are no
        such words, or no attention over them
    """
    if has_inter_sentence_gate(inference.model):
        if inter_sentence(inference).options.inter_sentence_ablation in ("random", "null"):
            return None  # there is no attention, or it is over NULL, which has no words
        weights = read_attention(inference, batch)
        attention = torch.stack([layer.float().mean(dim=0)[0] for layer in weights.values()]).mean(dim=0)
    else:
        _, extra = inference.model(**batch["net_input"])
        if not isinstance(extra, dict) or not extra.get("attn") or extra["attn"][0] is None:
            return None
        joined = max(0, batch["net_input"]["src_tokens"].size(1) - own_length)  # 0 if the sentence itself was cut
        attention = extra["attn"][0][0][:, :joined]
    is_word = [place + 1 < length for length in lengths for place in range(length)]
    is_word = is_word[len(is_word) - attention.size(1) :]
    if not any(is_word):
        return None
    is_target = batch["target"][0].ne(inference.task.target_dictionary.pad())
    found: np.ndarray = attention[is_target][:, torch.tensor(is_word)].float().cpu().numpy()
    return found
