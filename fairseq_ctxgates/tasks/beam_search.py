"""A beam search that leaves out unneeded work of fairseq's: it finds the same, up to rounding and equal scores."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from fairseq_ctxgates.compat import BeamSearch, EnsembleModel
from fairseq_ctxgates.models.context_model import ContextModel
from fairseq_ctxgates.models.mechanism_parts import EncoderOut
from fairseq_ctxgates.modules.attention import IncrementalState


class WordsFirstBeamSearch(BeamSearch):
    """fairseq's beam search, except that it first finds the words that can be among the best continuations.

    The best k continuations of a sentence's beams use at most k different words: the k words with the highest scores on
    their best beams. So the best are searched among the vocabulary, not among beams times the vocabulary. Among
    continuations of equal scores, it may choose others than fairseq does.
    """

    def step(
        self,
        step: int,
        lprobs: Tensor,
        scores: Optional[Tensor],
        prev_output_tokens: Optional[Tensor] = None,
        original_batch_idxs: Optional[Tensor] = None,
    ) -> Tuple[Tensor, Tensor, Tensor]:
        """The best continuations.

        Args:
            step: the number of tokens that the beams have
            lprobs: (sentences, beams, words), the log-probabilities of the next word
            scores: (sentences, beams, step), the scores of the beams after each token

        Returns:
            the scores, words and beams of the continuations, the best first, each (sentences, 2 · beams)
        """
        _, beams, vocabulary = lprobs.shape
        count = 2 * beams
        if scores is None or step == 0 or beams == 1 or count >= vocabulary:
            found: Tuple[Tensor, Tensor, Tensor] = super().step(step, lprobs, scores)
            return found
        totals = lprobs + scores[:, :, step - 1].unsqueeze(-1)
        words = totals.amax(dim=1).topk(count).indices
        of_words = totals.gather(-1, words.unsqueeze(1).expand(-1, beams, -1))
        best, places = of_words.flatten(1).topk(count)
        return best, words.gather(-1, places % count), torch.div(places, count, rounding_mode="floor")


class BeamEnsemble(EnsembleModel):
    """fairseq's ensemble, except that it computes the first step of a search only once for each sentence.

    At the first step, all beams of a sentence are the same, but fairseq computes each. Our models have one row for each
    sentence until that step is done. Other models may rely on the number of rows, as the attention of fairseq's BART
    does, so they are run as in fairseq.
    """

    def forward_encoder(self, net_input: Dict[str, Any]) -> Optional[List[EncoderOut]]:
        """As fairseq's."""
        encoder_outs: Optional[List[EncoderOut]] = super().forward_encoder(net_input)
        if encoder_outs is None or not all(isinstance(model, ContextModel) for model in self.models):
            return encoder_outs
        return _OfSentences(encoder_outs, len(net_input["src_tokens"]))

    def reorder_encoder_out(self, encoder_outs: Optional[List[EncoderOut]], new_order: Tensor) -> List[EncoderOut]:
        """As fairseq's. It is called before the first step, to make the beams of each sentence, and after each step."""
        if isinstance(encoder_outs, _OfSentences):
            if encoder_outs.of_beams is None:
                encoder_outs.of_beams = new_order
                return encoder_outs
            encoder_outs = super().reorder_encoder_out(encoder_outs, encoder_outs.of_beams)
        reordered: List[EncoderOut] = super().reorder_encoder_out(encoder_outs, new_order)
        return reordered

    def forward_decoder(
        self,
        tokens: Tensor,
        encoder_outs: List[EncoderOut],
        incremental_states: List[IncrementalState],
        *args: Any,
        **options: Any,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """As fairseq's: log-probabilities, (beams, words), and attention, (beams, source length), or None."""
        if not isinstance(encoder_outs, _OfSentences) or encoder_outs.of_beams is None:
            found: Tuple[Tensor, Optional[Tensor]] = super().forward_decoder(
                tokens, encoder_outs, incremental_states, *args, **options
            )
            return found
        of_beams = encoder_outs.of_beams
        log_probs, attention = super().forward_decoder(
            tokens[:: len(tokens) // encoder_outs.sentences], encoder_outs, incremental_states, *args, **options
        )
        self.reorder_incremental_state(incremental_states, of_beams)
        if attention is not None:
            attention = attention.index_select(0, of_beams)
        return log_probs.index_select(0, of_beams), attention


class _OfSentences(List[EncoderOut]):
    """The output of each model's encoder for this number of sentences, until the first step is done. ``of_beams``: the
    sentence of each beam, (beams,), once the beams are known."""

    def __init__(self, encoder_outs: List[EncoderOut], sentences: int) -> None:
        super().__init__(encoder_outs)
        self.sentences = sentences
        self.of_beams: Optional[Tensor] = None
