"""What a translation continues: the model's own translations of the preceding sentences, or their references."""

from __future__ import annotations

from itertools import takewhile
from typing import Dict, List, Optional, Sequence

import torch
from fairseq.data import data_utils
from torch import Tensor

from fairseq_ctxgates.data.side_stream import Batch


class PrecedingReferences:
    """The references of the preceding sentences, which batches bring, as a
    :class:`~fairseq_ctxgates.data.side_stream.PrecedingTarget`.

    Args:
        padding: the padding token
    """

    made_of_translations = False

    def __init__(self, padding: int) -> None:
        self.padding = padding

    def tokens(self, batch: Batch, longest: int) -> Tensor:
        """The references of each sentence's preceding sentences, as they were prepended to its target."""
        contexts = [row[row.ne(self.padding)] for row in batch["preceding_references"]]
        return _collate(contexts, longest, self.padding, batch)

    def keep(self, batch: Batch, translations: Sequence[Tensor]) -> None:
        """Do nothing: no translation continues another one."""

    def begin_lines(self, count: int) -> None:
        """Do nothing: lines have no references."""


class PrecedingTranslations:
    """The translations of one pass over the data, by the rows of their sentences, as a
    :class:`~fairseq_ctxgates.data.side_stream.PrecedingTarget`.

    Args:
        separator: the token after each translation
        padding: the padding token
        target_count: how many translations of preceding sentences a model reads
        translations: the translations to start with (default: none)
    """

    made_of_translations = True

    def __init__(
        self, separator: int, padding: int, target_count: int, translations: Optional[Dict[int, Tensor]] = None
    ) -> None:
        self.separator = torch.tensor([separator])
        self.padding = padding
        self.target_count = target_count
        self.translations: Dict[int, Tensor] = {} if translations is None else translations
        self.lines = 0

    def tokens(self, batch: Batch, longest: int) -> Tensor:
        """The translations of each sentence's preceding sentences, in order, each with the separator in the place of
        its end of sentence. If a sentence was too long to be translated, its translation and those before it are left
        out."""
        return _collate([self.before(rows) for rows in batch["preceding_rows"]], longest, self.padding, batch)

    def before(self, rows: Sequence[int]) -> Tensor:
        """The translations of these sentences, joined."""
        parts: List[Tensor] = []
        for row in takewhile(self.translations.__contains__, reversed(rows)):
            parts = [self.translations[row][:-1], self.separator, *parts]
        return torch.cat([self.separator[:0], *parts])

    def keep(self, batch: Batch, translations: Sequence[Tensor]) -> None:
        """Keep the translations of a batch."""
        # Copies: these are views of all hypotheses of a step, which would stay in memory with them.
        copies = (tokens.to("cpu", copy=True) for tokens in translations)
        self.translations.update(zip(batch["id"].tolist(), copies))

    def begin_lines(self, count: int) -> None:
        """Begin a new list of ``count`` lines. Of the translations so far, those that its first lines may continue are
        kept."""
        kept = {row - self.lines: tokens for row, tokens in self.translations.items()}
        self.translations = {row: tokens for row, tokens in kept.items() if row >= -self.target_count}
        self.lines = count


def _collate(contexts: Sequence[Tensor], longest: int, padding: int, batch: Batch) -> Tensor:
    """The last ``longest`` tokens of each context, padded on the right, on the device of the batch."""
    tokens: Tensor = data_utils.collate_tokens([context[-longest:] for context in contexts], padding)
    return tokens.to(batch["net_input"]["src_tokens"].device)
