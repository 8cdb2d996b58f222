"""The work of fairseq's beam search that can be left out: what it finds is the same."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from fairseq.models import BaseFairseqModel
from torch import Tensor

from fairseq_ctxgates.compat import BeamSearch, EnsembleModel
from fairseq_ctxgates.models.context_model import ContextModel, EncoderOut
from fairseq_ctxgates.modules.attention import IncrementalState


class WordsFirstBeamSearch(BeamSearch):
    """fairseq's beam search, which first finds the words that can be among the best continuations.

    The best k continuations of a sentence's beams have at most k words: the k best by their best beam. So the search
    for the best is over the vocabulary, not over beams times the vocabulary, where a CPU spends three times as long.
    Among continuations of equal scores it may choose others than fairseq's.
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
            step: how many tokens the beams have
            lprobs: (sentences, beams, words), of the next word
            scores: (sentences, beams, step), of the beams after each token

        Returns:
            scores, words and beams of the continuations, the best first, (sentences, 2 · beams)
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
    """fairseq's ensemble, which takes the first step of the search once for each sentence.

    At that step a sentence's beams are all the same, and fairseq computes each. Here rows are sentences until it is
    done, and then beams, where all models are ours. (fairseq's attention relies on the number of rows.)
    """

    def __init__(self, models: Sequence[BaseFairseqModel]) -> None:
        super().__init__(models)
        self._shares_first_step = all(isinstance(model, ContextModel) for model in models)
        self._beam_size = 1
        self._is_begun = False
        self._beams: Optional[Tensor] = None  # the sentence of each beam, while rows are sentences

    def set_decoder_beam_size(self, beam_size: int) -> None:
        """As fairseq's, which its generator calls when it is made."""
        super().set_decoder_beam_size(beam_size)
        self._beam_size = beam_size

    def forward_encoder(self, net_input: Dict[str, Any]) -> Optional[List[EncoderOut]]:
        """As fairseq's."""
        self._is_begun, self._beams = False, None
        encoder_outs: Optional[List[EncoderOut]] = super().forward_encoder(net_input)
        return encoder_outs

    def reorder_encoder_out(self, encoder_outs: Optional[List[EncoderOut]], new_order: Tensor) -> List[EncoderOut]:
        """As fairseq's, called before the first step to make beams of each sentence, and after each step."""
        if encoder_outs is not None and self._shares_first_step and not self._is_begun:
            self._beams = new_order
            return encoder_outs
        if self._beams is not None:
            encoder_outs, self._beams = super().reorder_encoder_out(encoder_outs, self._beams), None
        reordered: List[EncoderOut] = super().reorder_encoder_out(encoder_outs, new_order)
        return reordered

    def reorder_incremental_state(self, incremental_states: List[IncrementalState], new_order: Tensor) -> None:
        """As fairseq's, called after each step, before :meth:`reorder_encoder_out`."""
        if self._beams is not None:
            super().reorder_incremental_state(incremental_states, self._beams)
        super().reorder_incremental_state(incremental_states, new_order)

    def forward_decoder(
        self, tokens: Tensor, encoder_outs: List[EncoderOut], *args: Any, **options: Any
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """As fairseq's: log-probabilities, (beams, words), and attention, (beams, source length), or None."""
        self._is_begun = True
        if self._beams is None:
            found: Tuple[Tensor, Optional[Tensor]] = super().forward_decoder(tokens, encoder_outs, *args, **options)
            return found
        log_probs, attention = super().forward_decoder(tokens[:: self._beam_size], encoder_outs, *args, **options)
        if attention is not None:
            attention = attention.index_select(0, self._beams)
        return log_probs.index_select(0, self._beams), attention
