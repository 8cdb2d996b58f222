"""Alignments of translations, which ``--print-alignment`` prints and ``--replace-unk`` reads."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from torch import Tensor

from fairseq_ctxgates.compat import EnsembleModelWithAlignment, SequenceGeneratorWithAlignment
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.models.context_model import ContextModel


def wanted_alignment(args: Any, post_process: Optional[str]) -> Optional[str]:
    """The kind of alignment, ``hard`` or ``soft``, that translating with these options needs, or None.

    Args:
        args: options of generation, as a task is given them
        post_process: the value of ``--remove-bpe``

    Raises:
        UserError: ``--replace-unk`` cannot be combined with another of the options.
    """
    given = getattr(args, "print_alignment", None)
    printed = str(given) if given else None
    if getattr(args, "replace_unk", None) is None:
        return printed
    reasons = {
        "--score-reference": getattr(args, "score_reference", False),  # there is no translation
        "--print-alignment soft": printed == "soft",  # one source word replaces a target word
        "--remove-bpe": post_process,  # --replace-unk reads the data word by word
    }
    for option, is_given in reasons.items():
        if is_given:
            raise UserError(f"--replace-unk cannot be combined with {option}: leave one of them out")
    return "hard"


_OF_FAIRSEQ = ("src_tokens", "src_lengths", "prev_output_tokens")  # of a model's input


class Alignment(List[Tuple[int, int]]):
    """Pairs of the numbers of a source token and a target token, for each target token in order, as
    ``--print-alignment`` goes through them. ``alignment[i]`` is only the number of the source token of target token i,
    as ``--replace-unk`` reads it."""

    def __getitem__(self, target: int) -> int:  # type: ignore[override]
        # A source that is only the end of sentence, token 0, has no pairs.
        return super().__getitem__(target)[0] if self else 0


class AlignmentGenerator(SequenceGeneratorWithAlignment):
    """fairseq's generator of translations with alignments, also for models that read side streams."""

    def __init__(
        self, models: Sequence[BaseFairseqModel], tgt_dict: Dictionary, print_alignment: str, **options: Any
    ) -> None:
        super().__init__(models, tgt_dict, print_alignment=print_alignment, **options)
        self.model = _Ensemble(models)
        self.is_hard = print_alignment == "hard"

    def generate(self, models: Sequence[BaseFairseqModel], sample: Dict[str, Any], **options: Any) -> Any:
        """As fairseq's; each hard alignment is an :class:`Alignment`."""
        net_input = sample["net_input"]
        self.model.streams = {name: value for name, value in net_input.items() if name not in _OF_FAIRSEQ}
        self.model.sentences = len(net_input["src_tokens"])
        translations = super().generate(models, sample, **options)
        if self.is_hard:
            for hypothesis in (hypothesis for beams in translations for hypothesis in beams):
                hypothesis["alignment"] = Alignment(hypothesis["alignment"])
        return translations


class _Ensemble(EnsembleModelWithAlignment):
    """The models, which are run once more over the translations, with the inputs of side streams for those that read
    them.

    Attributes:
        streams: the inputs from side streams of a batch, by name
        sentences: the number of sentences in the batch
    """

    streams: Mapping[str, object] = MappingProxyType({})
    sentences = 0

    def forward_align(self, src_tokens: Tensor, src_lengths: Tensor, prev_output_tokens: Tensor) -> Tensor:
        """The mean of the models' attention, (rows, target length, source length).

        Args:
            src_tokens: (rows, source length); the k beams of a sentence are neighbours
            src_lengths: (rows,)
            prev_output_tokens: (rows, target length)
        """
        beams = len(src_tokens) // self.sentences
        rows = torch.arange(self.sentences, device=src_tokens.device).repeat_interleave(beams)
        attention = []
        for model in self.models:
            if isinstance(model, ContextModel):  # streams have a row for each sentence: its beams share the encoding
                encoder_out = model.encoder(src_tokens[::beams], src_lengths[::beams], **self.streams)
                _, extra = model.decode(prev_output_tokens, model.encoder.reorder_encoder_out(encoder_out, rows))
            else:
                _, extra = model(src_tokens, src_lengths, prev_output_tokens)
            attention.append(extra["attn"][0])
        return torch.stack(attention).mean(dim=0)
