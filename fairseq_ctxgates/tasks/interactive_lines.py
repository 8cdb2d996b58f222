"""The lines of fairseq-interactive, as datasets with side streams."""

from __future__ import annotations

from typing import List, Optional, Sequence

import torch
from fairseq import utils
from torch import Tensor

from fairseq_ctxgates.data.side_stream import Batch
from fairseq_ctxgates.data.side_stream_dataset import SideStreamDataset


class LineDataset(SideStreamDataset):
    """The lines of a buffer of fairseq-interactive, which rebuilds each batch from ``src_tokens`` and ``src_lengths``
    and drops the rest. It is done with one batch before it asks for the next, so the last one handed out is the one
    that it translates."""

    _handed_out: Optional[Batch] = None

    def collater(self, samples: List[Batch], **kwargs: object) -> Batch:
        self._handed_out = super().collater(samples, **kwargs)
        return self._handed_out

    def restore_inputs(self, sample: Batch, with_numbers: bool) -> Batch:
        """A batch that fairseq-interactive rebuilt from the one handed out last, with what it dropped; another batch as
        it is.

        Args:
            with_numbers: also with the numbers of the lines, where diverse beam search would expect those of the rows
        """
        source, handed_out = sample["net_input"]["src_tokens"], (self._handed_out or {}).get("net_input", {})
        if "src_tokens" not in handed_out or not torch.equal(handed_out["src_tokens"], source.cpu()):
            return sample
        restored: Batch = utils.apply_to_sample(lambda tensor: tensor.to(source.device), self._handed_out)
        if not with_numbers:
            del restored["id"]
        return {**restored, **sample, "net_input": {**restored["net_input"], **sample["net_input"]}}


class InteractiveLines:
    """What is read a buffer at a time, each going on where the last one ended.

    Attributes:
        dataset: the lines at hand
        before: the token ids of the last lines before these
    """

    def __init__(self) -> None:
        self.dataset: Optional[LineDataset] = None
        self.before: List[Tensor] = []
        self._last: List[Tensor] = []

    def begin_buffer(self) -> None:
        """Let the lines that are read next follow those read last."""
        self.before = self._last

    def read(self, tokens: Sequence[Tensor], dataset: LineDataset, context_size: int) -> None:
        """Make these the lines at hand, of which the last ones, as many as a model reads, may be followed by others. A
        list that no buffer begins is a document of its own."""
        self.dataset = dataset
        self._last = [*self.before, *tokens][-context_size:]
        self.before = []
