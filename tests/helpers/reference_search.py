"""A beam search by its definition, over whole prefixes, one sentence at a time."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Sequence

import torch
from torch import Tensor


class Translation(NamedTuple):
    """The tokens, end of sentence included, and the score: log P, divided by the length to the power of the penalty."""

    tokens: List[int]
    score: float


@torch.no_grad()
def next_log_probs(model: Any, source: Tensor, prefixes: Sequence[Sequence[int]]) -> Tensor:
    """The log-probabilities of the word after each prefix, all of one length, (prefixes, vocabulary)."""
    previous = torch.tensor(prefixes)
    sources = source.expand(len(prefixes), -1)
    output = model(sources, torch.full((len(prefixes),), source.numel()), previous)
    log_probs: Tensor = model.get_normalized_probs(output, log_probs=True)[:, -1]
    return log_probs


def beam_search(
    model: Any,
    source: Tensor,
    context: Sequence[int],
    beam: int,
    longest: int,
    shortest: int = 1,
    penalty: float = 1.0,
) -> List[Translation]:
    """The translations of a source that continue a context, the best first, as fairseq's beam search finds them: of the
    best ``2 * beam`` continuations those among the first ``beam`` that end are finished, the others go on; the search
    is over when ``beam`` are finished, or at the greatest length.

    Args:
        source: the source's tokens, end of sentence included
        context: what the decoder reads after its first end of sentence and before the translation
        longest, shortest: how many tokens a translation may have and must have, without its end of sentence
        penalty: of lengths
    """
    pad, eos = model.decoder.dictionary.pad(), model.decoder.dictionary.eos()
    active = [Translation([], 0.0)]
    finished: List[Translation] = []
    for step in range(longest + 1):
        log_probs = next_log_probs(model, source, [[eos, *context, *one.tokens] for one in active])
        log_probs[:, pad] = -torch.inf
        if step < shortest:
            log_probs[:, eos] = -torch.inf
        if step == longest:
            log_probs[:, torch.arange(log_probs.size(1)) != eos] = -torch.inf
        totals = log_probs + torch.tensor([one.score for one in active])[:, None]
        best = totals.flatten().topk(2 * beam)
        found = [
            Translation([*active[place // totals.size(1)].tokens, place % totals.size(1)], score)
            for score, place in zip(best.values.tolist(), best.indices.tolist())
        ]
        finished += [one for one in found[:beam] if one.tokens[-1] == eos and one.score > -torch.inf]
        active = [one for one in found if one.tokens[-1] != eos][:beam]
        if len(finished) >= beam:
            break
    ranked = [Translation(one.tokens, one.score / len(one.tokens) ** penalty) for one in finished[:beam]]
    return sorted(ranked, key=lambda one: one.score, reverse=True)
