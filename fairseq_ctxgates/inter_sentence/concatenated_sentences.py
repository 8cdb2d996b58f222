"""The concatenation baseline: the preceding sentence joined before the source, for any model (Tiedemann and Scherrer
2017)."""

from __future__ import annotations

from typing import AbstractSet, ClassVar, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from fairseq.data import FairseqDataset, LanguagePairDataset
from torch import Tensor
from torch.utils.data import Dataset

from fairseq_ctxgates.data.side_stream import Batch, TaskOptions
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.inter_sentence.preceding_sentences import NONE, PrecedingSentences, PrecedingSentencesConfig

Lengths = Union[int, np.ndarray]


class ConcatenatedSentences(PrecedingSentences):
    """Prepends the preceding sentence and a separator to every source, when the dataset is built. A source without a
    preceding sentence stays as it is. If the result is too long for ``--max-source-positions``, the preceding sentence
    is cut at its beginning."""

    inputs = ()
    changes_source = True
    saved_options: ClassVar[Mapping[str, bool]] = {"concatenate_preceding": True}

    def __init__(
        self,
        rows: np.ndarray,
        dataset: LanguagePairDataset,
        options: PrecedingSentencesConfig,
        task: TaskOptions,
        sentences: Optional[Sequence[Tensor]] = None,
    ) -> None:
        super().__init__(rows, dataset, options, task, sentences)
        separator = dataset.src_dict.index(options.concatenate_preceding)
        if separator == dataset.src_dict.unk():
            raise UserError(
                f"--concatenate-preceding {options.concatenate_preceding}: the source dictionary does not have this "
                f"word; </s>, the end of sentence, is in every dictionary"
            )
        # The dataset is the one that fairseq has just built for this task: nothing has read its sources yet.
        word = (str(options.concatenate_preceding) if separator != dataset.src_dict.eos() else "", separator)
        dataset.src = _Joined(dataset.src, self.sentences, rows, word, task.max_source_positions)
        dataset.src_sizes = dataset.src.sizes(self.source_lengths, self.preceding_lengths)
        dataset.sizes = (
            dataset.src_sizes
            if dataset.tgt_sizes is None
            else np.vstack((dataset.src_sizes, np.asarray(dataset.tgt_sizes))).T
        )

    @classmethod
    def is_wanted(cls, options: PrecedingSentencesConfig, required: AbstractSet[str]) -> bool:
        return options.concatenate_preceding is not None

    @classmethod
    def check_models(cls, options: PrecedingSentencesConfig, task: TaskOptions, required: AbstractSet[str]) -> None:
        super().check_models(options, task, required)
        if cls.is_wanted(options, required) and cls.name in required:
            raise UserError(
                "--concatenate-preceding is for architectures without a gate for the preceding sentence: leave it out"
            )

    def num_tokens(self, indices: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return tokens

    def padded_lengths(self, indices: np.ndarray) -> None:
        return None

    def add_to_batch(self, batch: Batch) -> None:
        """Nothing: the preceding sentence is in the source."""


class _Joined(Dataset):
    def __init__(
        self,
        sources: FairseqDataset,
        sentences: FairseqDataset,
        rows: np.ndarray,
        separator: Tuple[str, int],
        max_positions: int,
    ) -> None:
        self.sources = sources
        self.sentences = sentences
        self.rows = rows
        self.separator_text, self.separator = separator[0].split(), torch.tensor(separator[1:])
        self.max_positions = max_positions

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> Tensor:
        source = self.sources[index]
        room = self.room(len(source))
        if self.rows[index] == NONE or not room:
            return source
        preceding = self.sentences[self.rows[index]][:-1]  # without end of sentence
        return torch.cat([preceding[-room:], self.separator, source])

    def get_original_text(self, index: int) -> str:
        """The words, which ``--replace-unk`` reads of ``--dataset-impl raw``. Its alignments do not count the end of
        sentence, so as a separator it is left out."""
        source: str = self.sources.get_original_text(index)
        room = self.room(len(self.sources[index]))
        if self.rows[index] == NONE or not room:
            return source
        preceding = self.sentences.get_original_text(self.rows[index]).split()
        return " ".join([*preceding[-room:], *self.separator_text, source])

    def room(self, source_lengths: Lengths) -> Lengths:
        """How many words of the preceding sentence there is room for, beside a source and the separator."""
        return np.maximum(self.max_positions - source_lengths - 1, 0)

    def sizes(self, source_lengths: np.ndarray, preceding_lengths: np.ndarray) -> np.ndarray:
        """The lengths of all, from those of the parts, end of sentence included in each."""
        room = self.room(source_lengths)
        added = np.where((self.rows == NONE) | (room == 0), 0, np.minimum(preceding_lengths - 1, room) + 1)
        return source_lengths + added
