"""The labels z* of regularized context gates, one for each target token (Li et al. 2020, equation 7)."""

from dataclasses import dataclass, field
from typing import AbstractSet

import numpy as np
import torch
from fairseq.dataclass import FairseqDataclass

from fairseq_ctxgates.compat import MMapIndexedDataset
from fairseq_ctxgates.data.data_directory import Split
from fairseq_ctxgates.data.side_stream import Batch, SideStream
from fairseq_ctxgates.errors import UserError

TARGET, SOURCE, IGNORE = 0, 1, 2


@dataclass
class GateLabelsConfig(FairseqDataclass):
    """The options that the stream adds to the task."""

    load_gate_labels: bool = field(
        default=False,
        metadata={"help": "load the gate labels that `ctxgates gate-labels` wrote (needed on the training split)"},
    )


class GateLabels(SideStream[GateLabelsConfig]):
    """Adds ``batch["gate_labels"]``, (batch, target length): SOURCE or TARGET, IGNORE for padding and for tokens that
    have no label."""

    name = "gate"
    made_by = "ctxgates gate-labels {data} -s {source} -t {target}"
    train_only = True
    names_target_positions = True
    Config = GateLabelsConfig
    criterions = ("gate_regularized_cross_entropy",)

    @classmethod
    def is_wanted(cls, options: GateLabelsConfig, required: AbstractSet[str]) -> bool:
        return options.load_gate_labels

    @classmethod
    def load_split(cls, split: Split) -> MMapIndexedDataset:
        if not cls.exists(split) and split.has(split.target_lang) and split.is_text(split.target_lang):
            raise UserError(
                f"{split.text_prefix(split.target_lang)} is text, for which there are no gate labels: binarize it with "
                f"fairseq-preprocess --dataset-impl mmap; run: {cls.command(split)}"
            )
        return super().load_split(split)

    @classmethod
    def check_rows(cls, rows: MMapIndexedDataset, split: Split) -> None:
        """Raise UserError unless every row has a label for each target token."""
        super().check_rows(rows, split)
        target = split.load_language(split.target_lang)
        differing = np.flatnonzero(rows.sizes != target.sizes)
        if len(differing):
            first = differing[0]
            raise UserError(
                f"{split.stream_prefix(cls.name)}.idx: row {first + 1} has {rows.sizes[first]} labels "
                f"for {target.sizes[first]} target tokens"
            )

    def add_to_batch(self, batch: Batch) -> None:
        labels = torch.cat([self.rows[index] for index in batch["id"].tolist()])
        is_token = batch["target"].ne(self.dataset.tgt_dict.pad())
        batch["gate_labels"] = torch.full_like(batch["target"], IGNORE, dtype=labels.dtype)
        batch["gate_labels"][is_token] = labels


def gate_signs(labels: torch.Tensor) -> torch.Tensor:
    """The direction in which the hinge of equation 5 pushes: +1 where the gate z should fall below one half (TARGET),
    -1 where it should rise above it (SOURCE), 0 without a label. Same shape as ``labels``, float."""
    return (labels == TARGET).float() - (labels == SOURCE).float()
