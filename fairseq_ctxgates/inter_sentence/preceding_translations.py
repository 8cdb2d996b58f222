"""The model's own translations of preceding sentences, which the next translations continue."""

from __future__ import annotations

from itertools import takewhile
from typing import Dict, List, Optional, Sequence

import torch
from fairseq.data import data_utils
from torch import Tensor

from fairseq_ctxgates.data.side_stream import Batch


class PrecedingTranslations:
    """The translations of one pass over the data, by the number of their sentences, as a
    :class:`~fairseq_ctxgates.data.side_stream.TargetContext`.

    Args:
        separator: the token after each translation
        padding: the token of padding
        number: how many preceding sentences a model reads
        translations: those that there are
    """

    def __init__(
        self, separator: int, padding: int, number: int, translations: Optional[Dict[int, Tensor]] = None
    ) -> None:
        self.separator = torch.tensor([separator])
        self.padding = padding
        self.number = number
        self.translations: Dict[int, Tensor] = {} if translations is None else translations
        self.lines = 0

    def tokens(self, batch: Batch, longest: int) -> Tensor:
        """The translations of each sentence's preceding ones, in order, each with the separator in the place of its end
        of sentence. One that was left out of the translation, as too long, and those before it are not there. A batch
        may bring the references to read in their place."""
        translations = batch.get("preceding_references", self.translations)
        contexts = []
        for rows in batch["preceding_rows"]:
            parts: List[Tensor] = []
            for row in takewhile(translations.__contains__, reversed(rows)):
                parts = [translations[row][:-1].cpu(), self.separator, *parts]
            contexts.append(torch.cat([self.separator[:0], *parts])[-longest:])
        tokens: Tensor = data_utils.collate_tokens(contexts, self.padding)
        return tokens.to(batch["net_input"]["src_tokens"].device)

    def keep(self, batch: Batch, translations: Sequence[Tensor]) -> None:
        self.translations.update(zip(batch["id"].tolist(), (tokens.cpu() for tokens in translations)))

    def begin_lines(self, number: int) -> None:
        """Begin a new list of so many lines; of those before, the ones that its first lines may follow stay."""
        kept = {row - self.lines: tokens for row, tokens in self.translations.items()}
        self.translations = {row: tokens for row, tokens in kept.items() if row >= -self.number}
        self.lines = number
