"""The scores of right and wrong translations, each after the preceding sentences, by a model."""

from __future__ import annotations

import argparse
import logging
from itertools import chain
from typing import Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch
from fairseq.data import Dictionary, data_utils, encoders
from torch import Tensor

from fairseq_ctxgates.analysis.contrastive_sets import Example
from fairseq_ctxgates.analysis.inference import Inference, default_batch_size
from fairseq_ctxgates.analysis.scores import token_log_probs
from fairseq_ctxgates.data.side_stream import Batch
from fairseq_ctxgates.errors import UserError, one_line
from fairseq_ctxgates.inter_sentence.concatenated_sentences import ConcatenatedSentences
from fairseq_ctxgates.inter_sentence.preceding_stream import PrecedingStream

logger = logging.getLogger(__name__)

ENCODERS = {"tokenizer": encoders.build_tokenizer, "bpe": encoders.build_bpe}

# --- text to tokens


def text_encoder(args: argparse.Namespace, language: str) -> Callable[[str], str]:
    """A function that tokenizes text and splits its words, as fairseq-interactive does with ``--tokenizer`` and
    ``--bpe``. Without these options it returns the text unchanged.

    Raises:
        UserError: the tokenizer or the subwords cannot be set up.
    """
    options = argparse.Namespace(**{**vars(args), "source_lang": language})
    parts = []
    for name, build in ENCODERS.items():
        try:
            parts.append(build(options))
        except (AssertionError, ImportError, OSError, RuntimeError, ValueError) as error:
            raise UserError(f"--{name} {getattr(args, name)}: {one_line(error)}") from error

    def encode(text: str) -> str:
        for part in filter(None, parts):
            text = part.encode(text)
        return text

    return encode


# --- scores


class Candidates:
    """Every translation of every example, as input of a model.

    fairseq's task makes a dataset of lines, as for fairseq-interactive. The source line of each translation is in its
    own document, after the example's preceding sentences.

    Args:
        inference: the model and its task
        examples: the examples of the test set
        args: options of :func:`text_encoder`

    Raises:
        UserError: a sentence is too long for the model, or a preceding translation that the model reads is missing.
    """

    def __init__(self, inference: Inference, examples: Sequence[Example], args: argparse.Namespace) -> None:
        task = inference.task
        encode_source, encode_target = (text_encoder(args, language) for language in inference.languages)
        self.lines: List[Tensor] = []
        self.rows: List[int] = []  # the line of each candidate's source
        self.preceding_tokens: List[List[Tensor]] = []  # the preceding translations that may be read before each
        self.targets: Dict[int, Tensor] = {}  # by the line of their source
        self.preceding_targets: Dict[int, Tensor] = {}  # by the lines of the preceding sentences
        end = torch.tensor([task.source_dictionary.eos()])
        context_size = inference.context_size
        for example in examples:
            document = [
                _tokens(task.source_dictionary, encode_source(line)) for line in (*example.preceding, example.source)
            ]
            befores = example.preceding_targets or [()] * len(example.translations)
            for translation, before in zip(example.translations, befores):
                first = len(self.lines)
                self.lines += [*document, end]
                self.rows.append(first + len(example.preceding))
                self.targets[self.rows[-1]] = _tokens(task.target_dictionary, encode_target(translation))
                tokens = [_tokens(task.target_dictionary, encode_target(text)) for text in before]
                self.preceding_targets.update(enumerate(tokens, start=first))
                self.preceding_tokens.append(tokens[-context_size:])
        self.dataset = task.build_dataset_for_inference(self.lines, [len(line) for line in self.lines])
        self.padding, self.eos = task.target_dictionary.pad(), task.target_dictionary.eos()
        self.unknown = {
            "source": _unknown_fraction([self.lines[row] for row in self.rows], task.source_dictionary),
            "target": _unknown_fraction([self.targets[row] for row in self.rows], task.target_dictionary),
        }
        self.source_lengths = np.asarray(self.dataset.sizes)[self.rows]
        self.target_lengths = np.array([len(self.targets[row]) for row in self.rows])
        streams = getattr(self.dataset, "streams", ())  # fairseq's own task has none
        self.reads_preceding = any(isinstance(stream, PrecedingStream) for stream in streams)
        concatenated = (stream for stream in streams if isinstance(stream, ConcatenatedSentences))
        self.concatenated = [stream for stream in concatenated if stream.options.concatenate_preceding_target]
        by_example = np.split(np.arange(len(self.rows)), _starts(examples))
        alike = [self._first_alike(candidates.tolist()) for candidates in by_example]
        self.first_alike = list(chain.from_iterable(alike))
        # In how many examples a wrong translation is the same to the model as the right one.
        self.ambiguous = sum(right in wrong for right, *wrong in alike)
        self._check_context(inference, examples)
        self._check_lengths(inference, examples)

    def _first_alike(self, candidates: List[int]) -> List[int]:
        """For each candidate of an example, the first one that is the same to the model: the words in which they differ
        are unknown."""
        first: Dict[Tuple[Tuple[int, ...], ...], int] = {}
        return [first.setdefault(self._target_tokens(candidate), candidate) for candidate in candidates]

    def _target_tokens(self, candidate: int) -> Tuple[Tuple[int, ...], ...]:
        """What the model reads of a candidate's translations, the preceding ones before its own."""
        preceding = self.preceding_tokens[candidate] if self.concatenated else []
        return tuple(tuple(tokens.tolist()) for tokens in (*preceding, self.targets[self.rows[candidate]]))

    def _check_context(self, inference: Inference, examples: Sequence[Example]) -> None:
        for example in examples if self.concatenated else []:
            if example.preceding and example.preceding_targets is None:
                raise UserError(
                    f"{example.where} does not have the translations of the preceding sentences, which "
                    f"{inference.path} reads: give --preceding-target, or --documents with the subtitles of both "
                    f"languages, of the release that has its reference"
                )
        if self.reads_preceding and not any(example.preceding for example in examples):
            logger.warning(
                f"{inference.path} reads preceding sentences, but no example has any (see --preceding, --documents): "
                f"every example is scored as the first sentence of a document"
            )

    def _check_lengths(self, inference: Inference, examples: Sequence[Example]) -> None:
        owners = [example for example in examples for _ in example.translations]
        for lengths, limit, text in zip(
            (self.source_lengths, self.target_lengths), inference.max_positions, ("source", "translation")
        ):
            if (lengths > limit).any():
                first = int(np.argmax(lengths > limit))
                raise UserError(
                    f"{owners[first].where}: a {text} of {lengths[first]} tokens, and {inference.path} reads {limit}"
                )

    def batches(self, max_tokens: Optional[int], batch_size: Optional[int]) -> Iterator[Batch]:
        """Batches with targets; ``batch["id"]`` has the lines of their sources."""
        order = np.lexsort((self.target_lengths, self.source_lengths))
        rows = np.array(self.rows)[order]
        lengths = np.array([sum(map(len, tokens)) for tokens in self.preceding_tokens])
        befores = lengths[order] if self.concatenated else 0
        tokens = np.maximum(self.dataset.num_tokens_vec(rows), self.target_lengths[order] + befores)
        for batch_rows in data_utils.batch_by_size(
            rows,
            num_tokens_fn=None,
            num_tokens_vec=np.minimum(tokens, max_tokens or tokens.max()).astype(np.int64),
            max_tokens=max_tokens,
            max_sentences=default_batch_size(max_tokens, batch_size),
        ):
            batch: Batch = self.dataset.collater([self.dataset[row] for row in batch_rows])
            targets = [self.targets[row] for row in batch["id"].tolist()]
            batch["target"] = data_utils.collate_tokens(targets, self.padding)
            batch["net_input"]["prev_output_tokens"] = data_utils.collate_tokens(
                targets, self.padding, self.eos, move_eos_to_beginning=True
            )
            for stream in self.concatenated:
                stream.join_translations(batch, self.preceding_targets)
            yield batch


def _tokens(dictionary: Dictionary, text: str) -> Tensor:
    ids: Tensor = dictionary.encode_line(text, add_if_not_exist=False)
    return ids.long()


def _unknown_fraction(sentences: List[Tensor], dictionary: Dictionary) -> float:
    return float((torch.cat(sentences) == dictionary.unk()).float().mean())


def _starts(examples: Sequence[Example]) -> np.ndarray:
    """Where the translations of every example but the first begin among those of all."""
    return np.cumsum([len(example.translations) for example in examples])[:-1]


class ModelScores(NamedTuple):
    """The scores of a model.

    Attributes:
        examples: as the model reads them
        scores: of each example's translations, (translations,)
        ambiguous: the number of examples in which a wrong translation has the tokens of the right one
        unknown: the fraction of the tokens of each side, source and target, that are not in the model's dictionary
    """

    examples: List[Example]
    scores: List[np.ndarray]
    ambiguous: int
    unknown: Mapping[str, float]


def score_examples(inference: Inference, examples: List[Example], args: argparse.Namespace) -> ModelScores:
    """Score each translation of each example."""
    candidates = Candidates(inference, examples, args)
    scores: Dict[int, float] = {}
    for batch in candidates.batches(args.max_tokens, args.batch_size):
        batch = inference.to_device(batch)
        for row, log_probs in zip(batch["id"].tolist(), token_log_probs(inference, batch)):
            scores[row] = float(log_probs.mean() if args.normalize else log_probs.sum())
    # What is the same to the model has the same score, which in another batch would be rounded in another way.
    in_order = np.array([scores[candidates.rows[first]] for first in candidates.first_alike])
    return ModelScores(examples, np.split(in_order, _starts(examples)), candidates.ambiguous, candidates.unknown)
