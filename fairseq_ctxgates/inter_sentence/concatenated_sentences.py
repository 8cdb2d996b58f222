"""The concatenation baseline: the preceding sentences prepended to the source, for any model (Tiedemann and Scherrer
2017)."""

from __future__ import annotations

from typing import AbstractSet, ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch
from fairseq.data import Dictionary, LanguagePairDataset, data_utils
from torch import Tensor

from fairseq_ctxgates.data.side_stream import Batch, PrecedingTarget, TaskOptions
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.inter_sentence.joined_sentences import JoinedSentences, prepend
from fairseq_ctxgates.inter_sentence.preceding_rows import NONE, places_in_documents
from fairseq_ctxgates.inter_sentence.preceding_stream import PrecedingSentencesConfig, PrecedingStream, is_shifted
from fairseq_ctxgates.inter_sentence.preceding_translations import PrecedingReferences, PrecedingTranslations


class ConcatenatedSentences(PrecedingStream):
    """Prepends the preceding sentences, each followed by a separator, to every source, when the dataset is built. A
    source without a preceding sentence stays as it is. If the result is too long for ``--max-source-positions``, the
    prepended part is cut at its beginning.

    With ``--concatenate-preceding-target`` the translations of the same sentences are prepended to every target of a
    batch, and cut in the same way at ``--max-target-positions``; ``--concatenate-target-number`` chooses another number
    of sentences for the target. In training, all of these tokens are targets. Elsewhere, and with
    ``--ignore-preceding-target``, only the sentence's own tokens are targets, so that losses and scores are those of
    the sentence alone: the prepended part is padding in ``batch["target"]``, ends at ``batch["start_indices"]``, and is
    read in ``prev_output_tokens``.

    Batches also name the sentences whose translations are read, in ``batch["preceding_rows"]``. Batches come in the
    order in which sentences can be translated: the first sentences of all documents, then the second ones, and so on.
    With ``--preceding-references`` any order will do, and ``batch["preceding_references"]``, (batch, length), holds
    what to continue.
    """

    training_options = ("ignore_preceding_target",)
    translation_options = ("preceding_references",)
    saved_options: ClassVar[Mapping[str, bool]] = {
        "concatenate_preceding": True,
        "concatenate_number": True,
        "concatenate_preceding_target": True,
        "concatenate_target_number": True,
        **PrecedingStream.saved_options,
    }

    def __init__(
        self,
        rows: np.ndarray,
        dataset: LanguagePairDataset,
        options: PrecedingSentencesConfig,
        task_options: TaskOptions,
        sentences: Optional[Sequence[Tensor]] = None,
    ) -> None:
        super().__init__(rows, dataset, options, task_options, sentences)
        self.is_trained_on = False
        self.lines_before = len(self.sentences) - len(dataset.src)  # the lines come after those of earlier buffers
        self.source_count, self.target_count = _counts(options)
        self.context_lengths = self.context_lengths[:, : self.source_count]
        separator = separator_in(dataset.src_dict, options, "source")
        # The dataset is the one that fairseq has just built for this task: nothing has read its sources yet.
        dataset.src = JoinedSentences(
            dataset.src,
            self.sentences,
            self.source_rows,
            separator,
            task_options.max_source_positions,
            separator_text="" if separator == dataset.src_dict.eos() else str(options.concatenate_preceding),
        )
        dataset.src_sizes = dataset.src.joined_lengths(self.source_lengths, self.context_lengths)
        self.targets: Optional[JoinedSentences] = None
        if options.preceding_references and dataset.tgt is None:
            raise UserError("--preceding-references: the split has no target side: binarize it without --only-source")
        if dataset.tgt is not None and options.concatenate_preceding_target:
            separator = separator_in(dataset.tgt_dict, options, "target")
            self.targets = JoinedSentences(
                dataset.tgt, dataset.tgt, self.target_rows, separator, task_options.max_target_positions
            )
            lengths = np.asarray(dataset.tgt_sizes)
            before = np.where(self.contexts == NONE, 0, lengths[self.contexts])[:, : self.target_count]
            dataset.tgt_sizes = self.targets.joined_lengths(lengths, before)
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
        return max(_counts(options))

    @classmethod
    def changes_source(cls, options: PrecedingSentencesConfig) -> bool:
        return _counts(options)[0] > 0

    @classmethod
    def changes_target(cls, options: PrecedingSentencesConfig) -> bool:
        return bool(options.concatenate_preceding_target)

    @classmethod
    def preceding_target(cls, options: PrecedingSentencesConfig, dictionary: Dictionary) -> Optional[PrecedingTarget]:
        if not options.concatenate_preceding_target:
            return None
        if options.preceding_references:
            return PrecedingReferences(dictionary.pad())
        separator = separator_in(dictionary, options, "target")
        return PrecedingTranslations(separator, dictionary.pad(), _counts(options)[1])

    @classmethod
    def check_models(
        cls, options: PrecedingSentencesConfig, task_options: TaskOptions, required: AbstractSet[str]
    ) -> None:
        """Raise UserError if the options of the baseline contradict each other, or do not fit the models."""
        super().check_models(options, task_options, required)
        source_count, target_count = options.concatenate_number, options.concatenate_target_number
        if options.concatenate_preceding is None:
            if source_count is not None:
                raise UserError(f"--concatenate-number {source_count} needs --concatenate-preceding")
            if options.concatenate_preceding_target:
                raise UserError("--concatenate-preceding-target needs --concatenate-preceding, with the separator")
        if not options.concatenate_preceding_target:
            if target_count is not None:
                raise UserError(f"--concatenate-target-number {target_count} needs --concatenate-preceding-target")
            if options.ignore_preceding_target:
                raise UserError("--ignore-preceding-target needs --concatenate-preceding-target")
            if options.preceding_references:
                raise UserError("--preceding-references needs a model trained with --concatenate-preceding-target")
        if target_count is not None and target_count < 1:
            raise UserError(f"--concatenate-target-number {target_count}: it must be at least 1")
        least = 1 if target_count is None else 0
        if source_count is not None and source_count < least:
            raise UserError(
                f"--concatenate-number {source_count}: it must be at least 1, or 0 with --concatenate-target-number"
            )
        if options.preceding_length_ratio and source_count == 0:
            raise UserError(
                "--preceding-length-ratio compares a source with its preceding sentences: it would do nothing with "
                "--concatenate-number 0"
            )
        if cls.is_wanted(options, required) and cls.name in required:
            raise UserError(
                "--concatenate-preceding is for architectures without a gate for the preceding sentence: leave it out"
            )

    @classmethod
    def check_translation(cls, options: PrecedingSentencesConfig) -> None:
        if is_shifted(options) and not options.preceding_references:
            raise UserError(
                "--preceding-context shifted: a model that reads the preceding translations continues its own: give "
                "--preceding-context own, or --preceding-references"
            )

    def begin_training(self) -> None:
        super().begin_training()
        self.is_trained_on = True

    def source_rows(self, row: int) -> List[int]:
        return _last(self.preceding_rows(row), self.source_count)

    def target_rows(self, row: int) -> List[int]:
        """The rows of the sentences whose translations are prepended to a target, the nearest last."""
        return _last(self.preceding_rows(row), self.target_count)

    def drop_words(self) -> None:
        self.dataset.src.own = self.without_words(self.dataset.src.own)

    def rounds(self, indices: np.ndarray) -> Optional[List[np.ndarray]]:
        """See :meth:`SideStream.rounds`: the first sentences of all documents, then the second ones, and so on."""
        options = self.options
        continues = options.concatenate_preceding_target and not options.preceding_references
        if is_shifted(options) or not continues:
            return None
        nearest = self.rows[:, 0]
        before = np.where(nearest < self.lines_before, NONE, nearest - self.lines_before)
        places = places_in_documents(before)[indices]
        return [indices[places == place] for place in np.unique(places)]

    def add_to_batch(self, batch: Batch) -> None:
        """Add the preceding translations to the targets. The sources already have the preceding sentences."""
        if not self.options.concatenate_preceding_target:
            return
        rows = batch["id"].tolist()
        batch["preceding_rows"] = [[other - self.lines_before for other in self.target_rows(row)] for row in rows]
        if self.targets is not None:
            self.join_targets(batch, [self.targets[row] for row in rows])
            if self.options.preceding_references:
                befores = [self.targets.before(row) for row in rows]
                batch["preceding_references"] = data_utils.collate_tokens(befores, self.dataset.tgt_dict.pad())

    def join_translations(self, batch: Batch, translations: Dict[int, Tensor]) -> None:
        """Prepend translations of the preceding lines to the targets of a batch; ``translations`` has those of all
        lines, by row."""
        dictionary = self.dataset.tgt_dict
        pad, separator = dictionary.pad(), separator_in(dictionary, self.options, "target")
        context = PrecedingTranslations(separator, pad, self.target_count, translations)
        targets = [target[target.ne(pad)] for target in batch["target"]]
        limit = self.task_options.max_target_positions
        befores = (tokens[tokens.ne(pad)] for tokens in context.tokens(batch, limit))
        self.join_targets(batch, [prepend(before, target, limit) for before, target in zip(befores, targets)])

    def join_targets(self, batch: Batch, targets: List[Tensor]) -> None:
        """Make these the targets of a batch. Each of them ends with the target that the batch has so far."""
        dictionary, left_pad = self.dataset.tgt_dict, self.dataset.left_pad_target
        pad, multiple = dictionary.pad(), self.dataset.pad_to_multiple
        own_lengths = batch["target"].ne(pad).sum(dim=1).tolist()
        all_are_targets = self.is_trained_on and not self.options.ignore_preceding_target
        batch["net_input"]["prev_output_tokens"] = data_utils.collate_tokens(
            targets, pad, dictionary.eos(), left_pad, move_eos_to_beginning=True, pad_to_multiple=multiple
        )
        if not all_are_targets:
            targets = [_without_beginning(target, length, pad) for target, length in zip(targets, own_lengths)]
        batch["target"] = data_utils.collate_tokens(targets, pad, left_pad=left_pad, pad_to_multiple=multiple)
        is_target = batch["target"].ne(pad)
        batch["ntokens"] = int(is_target.sum())
        if not all_are_targets:
            batch["start_indices"] = is_target.long().argmax(dim=1).tolist()

    @classmethod
    def values_to_save(cls, options: PrecedingSentencesConfig, required: AbstractSet[str]) -> Dict[str, Optional[str]]:
        """See :meth:`SideStream.values_to_save`; None for what was not given, and for a number that is the default."""
        values = {name: getattr(options, name) for name in cls.saved_options}
        given = {name: str(value) for name, value in values.items() if value is not None and value is not False}
        source_count, target_count = _counts(options)
        if source_count == 1:  # the default, as that of the source is for the target
            given.pop("concatenate_number", None)
        if target_count == source_count:
            given.pop("concatenate_target_number", None)
        return {**dict.fromkeys(cls.saved_options), **given, **super().values_to_save(options, required)}


def _counts(options: PrecedingSentencesConfig) -> Tuple[int, int]:
    """The number of preceding sentences that are prepended to a source, and to a target."""
    source = 1 if options.concatenate_number is None else options.concatenate_number
    target = source if options.concatenate_target_number is None else options.concatenate_target_number
    return source, target if options.concatenate_preceding_target else 0


def _last(rows: List[int], count: int) -> List[int]:
    return rows[max(0, len(rows) - count) :]


def _without_beginning(target: Tensor, length: int, padding: int) -> Tensor:
    """A target of which all but the last ``length`` tokens are padding."""
    return torch.cat([torch.full_like(target[:-length], padding), target[-length:]])


def separator_in(dictionary: Dictionary, options: PrecedingSentencesConfig, side: str) -> int:
    """The separator as a token of the source's or the target's dictionary; UserError if the dictionary
    does not have it, or if it is a symbol that means something else to fairseq."""
    word = options.concatenate_preceding
    separator: int = dictionary.index(word)
    remedy = "</s>, the end of sentence, is in every dictionary"
    if word in (dictionary.bos_word, dictionary.pad_word, dictionary.unk_word):
        raise UserError(f"--concatenate-preceding {word}: this symbol is fairseq's own: choose another word; {remedy}")
    if separator == dictionary.unk():
        raise UserError(f"--concatenate-preceding {word}: the {side} dictionary does not have this word; {remedy}")
    return separator
