"""The lines of fairseq-interactive, as datasets with side streams."""

from __future__ import annotations

from typing import List, Optional, Sequence

import torch
from fairseq import utils
from torch import Tensor

from fairseq_ctxgates.data.side_stream import Batch
from fairseq_ctxgates.data.side_stream_dataset import SideStreamDataset


class LineDataset(SideStreamDataset):
    """The lines of a buffer of fairseq-interactive.

    fairseq-interactive rebuilds each batch from ``src_tokens`` and ``src_lengths``, and drops its other inputs. It
    finishes one batch before it asks for the next, so the batch that it translates is the one handed out last.
    """

    _handed_out: Optional[Batch] = None

    def collater(self, samples: List[Batch], **kwargs: object) -> Batch:
        self._handed_out = super().collater(samples, **kwargs)
        return self._handed_out

    def restore_inputs(self, sample: Batch, with_numbers: bool) -> Batch:
        """If fairseq-interactive rebuilt this batch from the one handed out last, the batch with the inputs that it
        dropped; otherwise the batch unchanged.

        Args:
            with_numbers: also add the numbers of the lines, where diverse beam search would expect those of the rows
        """
        source, handed_out = sample["net_input"]["src_tokens"], (self._handed_out or {}).get("net_input", {})
        if "src_tokens" not in handed_out or not torch.equal(handed_out["src_tokens"], source.cpu()):
            return sample
        restored: Batch = utils.apply_to_sample(lambda tensor: tensor.to(source.device), self._handed_out)
        if not with_numbers:
            del restored["id"]
        return {**restored, **sample, "net_input": {**restored["net_input"], **sample["net_input"]}}


class InteractiveLines:
    """Lines that are read a buffer at a time. Each buffer goes on where the last one ended.

    Attributes:
        dataset: the current lines
        before: the token ids of the last lines before them
    """

    def __init__(self) -> None:
        self.dataset: Optional[LineDataset] = None
        self.before: List[Tensor] = []
        self._last: List[Tensor] = []

    def begin_buffer(self) -> None:
        """Let the lines that are read next follow the current lines."""
        self.before = self._last

    def read(self, tokens: Sequence[Tensor], dataset: LineDataset, context_size: int) -> None:
        """Make these the current lines, and keep the last ones, as many as a model reads, for lines that follow. Lines
        that are read without :meth:`begin_buffer` are a document of their own."""
        self.dataset = dataset
        self._last = [*self.before, *tokens][-context_size:]
        self.before = []
