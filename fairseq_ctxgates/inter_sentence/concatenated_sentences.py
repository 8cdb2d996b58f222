"""The concatenation baseline: the preceding sentences joined before the source, for any model (Tiedemann and Scherrer
2017)."""

from __future__ import annotations

from typing import AbstractSet, Callable, ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from fairseq.data import FairseqDataset, LanguagePairDataset
from torch import Tensor
from torch.utils.data import Dataset

from fairseq_ctxgates.data.side_stream import Batch, TaskOptions
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.inter_sentence.preceding_sentences import PrecedingSentences, PrecedingSentencesConfig

Lengths = Union[int, np.ndarray]


class ConcatenatedSentences(PrecedingSentences):
    """Prepends the preceding sentences, each with a separator after it, to every source, when the dataset is built. A
    source without a preceding sentence stays as it is. If the result is too long for ``--max-source-positions``, what
    is prepended is cut at its beginning."""

    inputs = ()
    changes_source = True
    saved_options: ClassVar[Mapping[str, bool]] = {"concatenate_preceding": True, "concatenate_number": True}

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
        dataset.src = _Joined(dataset.src, self.sentences, self.preceding_rows, word, task.max_source_positions)
        dataset.src_sizes = dataset.src.sizes(self.source_lengths, self.lengths)
        dataset.sizes = (
            dataset.src_sizes
            if dataset.tgt_sizes is None
            else np.vstack((dataset.src_sizes, np.asarray(dataset.tgt_sizes))).T
        )

    @classmethod
    def is_wanted(cls, options: PrecedingSentencesConfig, required: AbstractSet[str]) -> bool:
        return options.concatenate_preceding is not None

    @classmethod
    def context_size(cls, options: PrecedingSentencesConfig) -> int:
        return int(options.concatenate_number or 1)

    @classmethod
    def check_models(cls, options: PrecedingSentencesConfig, task: TaskOptions, required: AbstractSet[str]) -> None:
        super().check_models(options, task, required)
        if cls.is_wanted(options, required) and cls.name in required:
            raise UserError(
                "--concatenate-preceding is for architectures without a gate for the preceding sentence: leave it out"
            )

    def drop_words(self) -> None:
        self.dataset.src.sources = self.without_words(self.dataset.src.sources)

    def num_tokens(self, indices: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return tokens

    def padded_lengths(self, indices: np.ndarray) -> None:
        return None

    def add_to_batch(self, batch: Batch) -> None:
        """Nothing: the preceding sentences are in the source."""

    @classmethod
    def values_to_save(cls, options: PrecedingSentencesConfig, required: AbstractSet[str]) -> Dict[str, Optional[str]]:
        number = options.concatenate_number
        return {
            "concatenate_preceding": options.concatenate_preceding,
            "concatenate_number": None if number is None else str(number),
        }


class _Joined(Dataset):
    def __init__(
        self,
        sources: FairseqDataset,
        sentences: FairseqDataset,
        preceding_rows: Callable[[int], List[int]],
        separator: Tuple[str, int],
        max_positions: int,
    ) -> None:
        self.sources = sources
        self.sentences = sentences
        self.preceding_rows = preceding_rows
        self.separator_text, self.separator = separator[0], torch.tensor(separator[1:])
        self.max_positions = max_positions

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> Tensor:
        source = self.sources[index]
        joined = [part for row in self.preceding(index) for part in (self.sentences[row][:-1], self.separator)]
        return torch.cat([torch.cat([*joined, source[:0]])[-self.room(len(source)) :], source])

    def get_original_text(self, index: int) -> str:
        """The words, which ``--replace-unk`` reads of ``--dataset-impl raw``. Its alignments do not count the end of
        sentence, so as a separator it is left out."""
        source: str = self.sources.get_original_text(index)
        joined: List[str] = []
        for row in self.preceding(index):
            joined += [*self.sentences.get_original_text(row).split(), self.separator_text]
        return " ".join([*filter(None, joined[-self.room(len(self.sources[index])) :]), source])

    def preceding(self, index: int) -> List[int]:
        """The sentences to join before a source, the nearest last; none where there is no room."""
        return self.preceding_rows(index) if self.room(len(self.sources[index])) else []

    def room(self, source_lengths: Lengths) -> Lengths:
        """How many words and separators there is room for before a source: none, or a word and a separator at least."""
        room = self.max_positions - source_lengths
        return np.where(room < 2, 0, room)

    def sizes(self, source_lengths: np.ndarray, preceding_lengths: np.ndarray) -> np.ndarray:
        """The lengths of all, from those of the sources and of their preceding sentences, (sentences, N), end of
        sentence included in each, in whose place there is a separator."""
        added: np.ndarray = np.minimum(preceding_lengths.sum(axis=1), self.room(source_lengths))
        return source_lengths + added
