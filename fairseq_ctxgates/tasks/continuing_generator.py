"""The search for translations, also for those that continue a text."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from torch import Tensor

from fairseq_ctxgates.compat import BeamSearch, Sampling, SequenceGenerator
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.tasks.beam_search import BeamEnsemble, WordsFirstBeamSearch

CONTEXT = "preceding_target"  # in a batch: the tokens before each translation, padded on the right, (batch, length)

Hypothesis = Dict[str, Any]


class ContinuingGenerator(SequenceGenerator):
    """fairseq's generator, which also finds translations that continue the tokens in ``sample["preceding_target"]``.

    The decoder reads these tokens first. The search, its scores and what it returns concern the translation alone: the
    length penalty, ``--min-len`` and ``--max-len-a/-b`` count from the translation's beginning. For a sample without
    that key it does what fairseq's generator does.
    """

    max_len_a: float
    max_len_b: int
    search: Any

    def __init__(self, models: Sequence[BaseFairseqModel], tgt_dict: Dictionary, **options: Any) -> None:
        super().__init__(_Ensemble(models), tgt_dict, **options)
        if type(self.search) is BeamSearch:
            self.search.__class__ = WordsFirstBeamSearch
        # In the search, an end of sentence ends a translation. Those of the context are therefore replaced by the
        # beginning-of-sentence symbol, which no text has.
        self.stand_in = tgt_dict.bos()
        self.longest_translation: Optional[int] = None  # while translations continue a context

    def check(self) -> None:
        """Raise UserError for options of the search that cannot be used when translations continue a context."""
        refused = {
            "--no-repeat-ngram-size": self.repeat_ngram_blocker is not None,
            "--lm-path": self.lm_model is not None,
            "--match-source-len": self.match_source_len,
            "--diverse-beam-groups, --diversity-rate, --constraints and prefix_allowed_tokens_fn": not isinstance(
                self.search, (BeamSearch, Sampling)
            ),
        }
        for option, is_given in refused.items():
            if is_given:
                raise UserError(f"{option}: not with a model that reads the preceding translations; leave it out")

    def generate(self, models: Sequence[BaseFairseqModel], sample: Dict[str, Any], **options: Any) -> Any:
        """As fairseq's; raises UserError as :meth:`check` does, for prefixes of the translations, and if the minimum
        length is above the maximum length."""
        context: Optional[Tensor] = sample.get(CONTEXT)
        if context is None:
            return super().generate(models, sample, **options)
        self.check()
        if options.get("prefix_tokens") is not None:
            raise UserError("--prefix-size: not with a model that reads the preceding translations; leave it out")
        max_len_a, max_len_b = self.max_len_a, self.max_len_b
        longest = int(max_len_a * sample["net_input"]["src_tokens"].size(1) + max_len_b)
        if self.min_len > longest:
            raise UserError(
                f"--min-len {self.min_len}: --max-len-a {max_len_a} and --max-len-b {max_len_b} allow translations of "
                f"{longest} words here; make it smaller, or them larger"
            )
        if not context.numel():
            return super().generate(models, sample, **options)
        lengths = context.ne(self.pad).sum(dim=1)
        self.longest_translation = longest
        # At its last step the search ends all translations of a batch; by then each has ended by itself.
        steps = int((lengths + self._longest(lengths)).max()) + 1
        prefix = torch.nn.functional.pad(context, (0, steps - context.size(1)), value=self.pad)
        self.max_len_a, self.max_len_b = 0, steps
        self.model.reads_as = (self.stand_in, self.eos)
        try:
            options["prefix_tokens"] = prefix.masked_fill(prefix.eq(self.eos), self.stand_in)
            found = super().generate(models, sample, **options)
        finally:
            self.max_len_a, self.max_len_b = max_len_a, max_len_b
            self.longest_translation = self.model.reads_as = None
        return [self._without_context(hypotheses, length) for hypotheses, length in zip(found, lengths.tolist())]

    def _longest(self, context_lengths: Tensor) -> Tensor:
        """How many tokens a translation may have after contexts of these lengths: as many as ``--max-len-a`` and ``-b``
        allow, but no more than the models have positions for."""
        assert self.longest_translation is not None
        return (self.max_len - 2 - context_lengths).clamp(max=self.longest_translation)

    def _prefix_tokens(
        self, step: int, lprobs: Tensor, scores: Tensor, tokens: Tensor, prefix_tokens: Tensor, beam_size: int
    ) -> Tuple[Tensor, Tensor, Tensor]:
        """Within the context, only its next token is possible, at no cost. After it, the length is limited."""
        if self.longest_translation is None:
            found: Tuple[Tensor, Tensor, Tensor] = super()._prefix_tokens(
                step, lprobs, scores, tokens, prefix_tokens, beam_size
            )
            return found
        lengths = prefix_tokens.ne(self.pad).sum(dim=1).repeat_interleave(beam_size)
        words = prefix_tokens[:, step].repeat_interleave(beam_size)
        place = step - lengths  # in the translation
        is_context, is_last = place < 0, place >= self._longest(lengths)
        ends = lprobs[:, self.eos].masked_fill((place >= 0) & (place < self.min_len) & ~is_last, float("-inf"))
        lprobs[:, self.stand_in] = float("-inf")
        suppressed = getattr(self, "token_indices_to_suppress", None)
        if suppressed is not None:
            lprobs[:, suppressed] = float("-inf")
        # Not by indexing with a mask, for which the host would have to wait for the GPU.
        lprobs.masked_fill_((is_context | is_last)[:, None], float("-inf"))
        lprobs[:, self.eos] = ends.masked_fill(is_context, float("-inf"))
        words = words[:, None]
        lprobs.scatter_(-1, words, lprobs.gather(-1, words).masked_fill(is_context[:, None], 0.0))
        return lprobs, tokens, scores

    def _without_context(self, hypotheses: List[Hypothesis], length: int) -> List[Hypothesis]:
        """The translations after a context of this length, the best first."""
        for hypothesis in hypotheses:
            if self.normalize_scores:
                whole = len(hypothesis["tokens"])
                hypothesis["score"] = hypothesis["score"] * (whole / (whole - length)) ** self.len_penalty
            for name in ("tokens", "positional_scores"):
                hypothesis[name] = hypothesis[name][length:]
            if hypothesis["attention"].dim() == 2:  # (source length, target length); some decoders return none
                hypothesis["attention"] = hypothesis["attention"][:, length:]
        return sorted(hypotheses, key=lambda hypothesis: float(hypothesis["score"]), reverse=True)


class _Ensemble(BeamEnsemble):
    """The models, which read one token in place of another one that the search has: ``reads_as`` is (the search's
    token, the models' token)."""

    reads_as: Optional[Tuple[int, int]] = None

    def forward_decoder(self, tokens: Tensor, *args: Any, **options: Any) -> Any:
        """As fairseq's."""
        if self.reads_as is not None:
            tokens = tokens.masked_fill(tokens.eq(self.reads_as[0]), self.reads_as[1])
        return super().forward_decoder(tokens, *args, **options)
