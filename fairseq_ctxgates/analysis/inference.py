"""A trained model run over a split of a binarized data directory, with the reference as the decoder's input."""

from __future__ import annotations

import argparse
import ast
import contextlib
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Protocol, Sequence, Tuple

import numpy as np
import torch
from fairseq import checkpoint_utils, utils
from fairseq.data import FairseqDataset
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor

from fairseq_ctxgates.analysis.options import add_data_options, add_split_option
from fairseq_ctxgates.checkpoints.loading import load_checkpoint
from fairseq_ctxgates.command_line import positive
from fairseq_ctxgates.compat import TranslationTask
from fairseq_ctxgates.data.data_directory import Split, find_split, first_data_dir, load_dictionary
from fairseq_ctxgates.data.side_stream import Batch
from fairseq_ctxgates.errors import UserError, one_line
from fairseq_ctxgates.user_dir import register_models

if TYPE_CHECKING:
    from fairseq_ctxgates.models.context_model import ContextModel

# This package's models and tasks are imported only in functions: those of --user-dir must be registered before them.

# Sentences that are shown are not padded to a multiple of --required-seq-len-multiple, or to the lengths of
# --num-batch-buckets. This changes no score.
UNPADDED = {"required_seq_len_multiple": 1, "num_batch_buckets": 0}


class TranslationModel(Protocol):
    """The part of fairseq's encoder-decoder models that the analyses use."""

    encoder: Any
    decoder: Any

    def __call__(self, **net_input: Any) -> Tuple[Tensor, Any]:
        """Scores of the vocabulary, (batch, target length, vocabulary), and whatever else the decoder returns."""

    def get_normalized_probs(
        self, net_output: Tuple[Tensor, Any], log_probs: bool, sample: Optional[Batch] = None
    ) -> Tensor:
        """Probabilities of the vocabulary, or their logarithms, (batch, target length, vocabulary)."""

    def max_positions(self) -> Tuple[int, int]:
        """The longest source and target that the model can read."""


def add_inference_options(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """Add the options of every analysis that runs a model over a split, named as in ``fairseq-validate``. With
    ``several``, ``--path`` may name more than one model (see :func:`checkpoint_paths`)."""
    add_model_options(parser, several)
    add_split_option(parser, "data split to run over")
    add_batch_options(parser)


def add_model_options(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """Add the options for the model or models, and for the data directory with their dictionaries."""
    add_data_options(parser, "binarized data directory", "default: as in training")
    if several:
        parser.add_argument(
            "--path",
            required=True,
            action="extend",
            nargs="+",
            metavar="CHECKPOINT",
            help="the trained models (a.pt b.pt or a.pt:b.pt)",
        )
    else:
        parser.add_argument("--path", required=True, metavar="CHECKPOINT", help="the trained model")
    parser.add_argument(
        "--user-dir",
        metavar="DIR",
        help="folder of your own models or mechanisms, as for fairseq-train (default: none)",
    )


def add_batch_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the size of a batch, and those of :func:`add_loading_options`."""
    parser.add_argument("--max-tokens", type=positive, metavar="N", help="maximum number of tokens in a batch")
    parser.add_argument(
        "--batch-size", type=positive, metavar="N", help="maximum number of sentences in a batch (default: 64)"
    )
    add_loading_options(parser)


def add_loading_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the device and for overriding the model's options."""
    parser.add_argument("--cpu", action="store_true", help="use the CPU even if there is a GPU")
    parser.add_argument(
        "--model-overrides",
        type=parse_overrides,
        default={},
        metavar="DICT",
        help="options that replace those of training, as for fairseq-generate: \"{'inter_sentence_ablation': 'null'}\"",
    )


def checkpoint_paths(args: argparse.Namespace) -> List[str]:
    """The checkpoints that ``--path`` names, for an analysis of several models.

    Raises:
        UserError: as :func:`check_checkpoints`.
    """
    paths = [path for given in args.path for path in utils.split_paths(given)]
    check_checkpoints(paths)
    return paths


def check_checkpoints(paths: Sequence[str]) -> None:
    """Raise UserError for a checkpoint that does not exist, before an analysis spends time on the first ones."""
    for path in paths:
        if not Path(path).is_file():
            if all(Path(part).is_file() for part in utils.split_paths(path)):
                raise UserError(f"--path {path}: this analysis reads one model")
            if Path(path).is_dir():
                raise UserError(f"{path} is a folder: name a checkpoint in it")
            raise UserError(f"{path} not found: give a checkpoint of fairseq-train to --path")


def parse_overrides(text: str) -> Dict[str, object]:
    """A Python dictionary of options, as ``fairseq-generate --model-overrides`` reads it."""
    try:
        overrides = dict(ast.literal_eval(text))
        if not all(isinstance(name, str) for name in overrides):
            raise TypeError("a name that is no text")
        return overrides
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a dictionary such as {{'dropout': 0.1}}") from error


def as_context_model(model: TranslationModel) -> Optional[ContextModel]:
    """The model, if it is one of this package, with the methods that fairseq's own models lack; otherwise None."""
    from fairseq_ctxgates.models.context_model import ContextModel

    return model if isinstance(model, ContextModel) else None


def required_streams(model: TranslationModel) -> Sequence[str]:
    """The names of the side streams that a model reads; none for fairseq's own models."""
    own = as_context_model(model)
    return () if own is None else own.required_streams


def run_without_attention(model: TranslationModel, batch: Batch, **options: Any) -> Tuple[Tensor, Any]:
    """A model's output for a batch. Models of this package do not return attention weights, so that they can use the
    faster computation of attention.

    Args:
        options: further arguments for a model of this package
    """
    if as_context_model(model) is not None:
        options = {"return_attention": False, **options}
    return model(**batch["net_input"], **options)


@contextlib.contextmanager
def _explain_errors(path: str, data: str) -> Iterator[None]:
    """Turn the exceptions with which fairseq fails to load a checkpoint into a UserError."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"{error.filename} not found: give the --destdir of fairseq-preprocess") from error
    except OmegaConfBaseException as error:
        raise UserError(f"{path}, --model-overrides: {one_line(error)}") from error
    except Exception as error:
        # For a damaged file these raise UserError, whatever fairseq raised for it.
        load_checkpoint(Path(path))
        for dictionary in first_data_dir(data).glob("dict.*.txt"):
            load_dictionary(dictionary)
        if isinstance(error, (AssertionError, IndexError)):  # how fairseq fails if it does not know the model or task
            raise UserError(
                f"fairseq does not know the model or the task of {path}: if they are your own, give --user-dir, as to "
                f"fairseq-train ({one_line(error)})"
            ) from error
        if not isinstance(error, (OSError, EOFError, KeyError, RuntimeError, ValueError)):
            raise
        raise UserError(
            f"{path} is not a complete fairseq checkpoint, or was trained with dictionaries other than those of {data} "
            f"({one_line(error)})"
        ) from error


class Inference:
    """A model loaded from a checkpoint, in evaluation mode, and a data directory to run it on.

    Args:
        path: the checkpoint
        data: binarized data directory
        cpu: use the CPU even if there is a GPU
        overrides: options that replace those of training, by name

    Raises:
        UserError: the checkpoint, the data directory or a dictionary does not exist, or they do not fit each other.
    """

    def __init__(
        self, path: str, data: str, cpu: bool = False, overrides: Mapping[str, object] = MappingProxyType({})
    ) -> None:
        check_checkpoints([path])
        register_models()
        from fairseq_ctxgates.tasks.model_overrides import ModelOptions

        self.path = path
        self.data_dir = first_data_dir(data)
        with _explain_errors(path, data):
            (model,), self.config, self.task = checkpoint_utils.load_model_ensemble_and_task(
                [path], {**UNPADDED, **overrides, "data": data}
            )
        if not isinstance(self.task, TranslationTask):
            raise UserError(f"{path} was trained with --task {self.config.task._name}, which is not a translation task")
        self.model_options = ModelOptions.of(model, self.config.model)
        self.device = torch.device("cuda" if torch.cuda.is_available() and not cpu else "cpu")
        self.model: TranslationModel = model.to(self.device).eval()

    @classmethod
    def from_options(cls, args: argparse.Namespace, path: Optional[str] = None, **overrides: object) -> Inference:
        """The model that the options of :func:`add_inference_options` name.

        Args:
            path: the checkpoint, if there are several; :func:`check_overrides` checks all of them together
            overrides: further options that replace those of training

        Raises:
            UserError: as for the class, or ``--model-overrides`` names another data directory
        """
        if "data" in args.model_overrides:
            raise UserError(f"--model-overrides: the data directory is {args.data}, as it was given; leave out 'data'")
        if path is None:
            check_overrides(args, [args.path])
        register_models(args.user_dir)
        languages = {"source_lang": args.source_lang, "target_lang": args.target_lang}
        overrides.update({name: language for name, language in languages.items() if language})
        return cls(path or args.path, args.data, args.cpu, {**args.model_overrides, **overrides})

    @property
    def languages(self) -> Tuple[str, str]:
        """Source and target language."""
        return self.task.cfg.source_lang, self.task.cfg.target_lang

    @property
    def direction(self) -> str:
        """Source and target language, such as ``de-en``."""
        return "-".join(self.languages)

    def check_direction(self, other: str, direction: str) -> None:
        """Raise UserError unless another model, whose checkpoint is ``other``, translates in the same direction."""
        if direction != self.direction:
            raise UserError(
                f"{self.path} translates {self.direction}, {other} {direction}: compare models of the same direction"
            )

    @property
    def context_size(self) -> int:
        """How many preceding sentences the model reads; 1 if it reads none."""
        streams = getattr(self.task, "streams", None)  # fairseq's own task has none
        return streams.context_size() if streams else 1

    @property
    def max_positions(self) -> Tuple[int, int]:
        """The longest source and target that the model and its task can read."""
        limits: Tuple[int, int] = utils.resolve_max_positions(self.task.max_positions(), self.model.max_positions())
        return limits

    def split(self, name: str) -> Split:
        """A split of the data directory; raises UserError as :func:`find_split`."""
        return find_split(self.data_dir, name, *self.languages)

    def load_split(self, split: str) -> FairseqDataset:
        """The dataset of a split; raises UserError as :meth:`split`, or where its data are damaged."""
        data = self.split(split)
        for language in self.languages:
            data.load_language(language)
        # As the data are, and not as those of training were.
        self.task.cfg.dataset_impl = "raw" if data.is_text(self.languages[0]) else None
        self.task.load_dataset(split, task_cfg=self.config.task)
        return self.task.dataset(split)

    def batches(
        self, split: str, max_tokens: Optional[int] = None, batch_size: Optional[int] = None
    ) -> Iterator[Batch]:
        """fairseq's batches of a split, on the model's device; 64 sentences each if no size is given.

        Raises:
            UserError: as :meth:`load_split`, or a sentence has more than ``max_tokens`` tokens.
        """
        dataset = self.load_split(split)
        try:
            batches = self.task.get_batch_iterator(
                dataset,
                max_tokens=max_tokens,
                max_sentences=default_batch_size(max_tokens, batch_size),
                max_positions=self.max_positions,
                ignore_invalid_inputs=True,
            ).next_epoch_itr(shuffle=False)
        except AssertionError as error:  # fairseq raises nothing more specific for a sentence that is too long
            raise UserError(f"--max-tokens {max_tokens}: a sentence of {split} is longer; give more") from error
        for batch in batches:
            yield self.to_device(batch)

    def rows_read(self, split: str) -> List[int]:
        """The rows of the sentences that :meth:`batches` gives of a loaded split: those that are not too long."""
        dataset = self.task.dataset(split)
        rows, _ = dataset.filter_indices_by_size(np.arange(len(dataset)), self.max_positions)
        found: List[int] = np.asarray(rows).tolist()
        return found

    def check_sentence(self, split: str, number: int) -> None:
        """Raise UserError as :meth:`sentence`, or where the sentence is not in :meth:`batches`."""
        self.sentence(split, number)
        if number - 1 not in self.rows_read(split):
            raise UserError(f"--sentence {number}: it is too long for {self.path}, choose another")

    def sentence(self, split: str, number: int) -> Batch:
        """A batch of one sentence of a split, by its number, from 1, on the model's device.

        Raises:
            UserError: the split does not exist, or has no sentence of this number.
        """
        dataset = self.task.datasets[split] if split in self.task.datasets else self.load_split(split)
        if not 1 <= number <= len(dataset):
            raise UserError(f"--sentence {number}: split {split!r} has sentences 1 to {len(dataset)}")
        return self.to_device(dataset.collater([dataset[number - 1]]))

    def to_device(self, batch: Batch) -> Batch:
        """The batch on the model's device."""
        moved: Batch = utils.move_to_cuda(batch) if self.device.type == "cuda" else batch
        return moved


def default_batch_size(max_tokens: Optional[int], batch_size: Optional[int]) -> Optional[int]:
    """The maximum number of sentences in a batch: 64 if neither maximum is given."""
    return batch_size or (None if max_tokens else 64)


def check_overrides(args: argparse.Namespace, paths: Sequence[str], reads_lines: bool = False) -> None:
    """Raise UserError for a key of ``--model-overrides`` that none of the models reads, nor anything else. The models
    are loaded one after the other for this, and again when they are analysed.

    Args:
        reads_lines: whether the analysis reads lines of text, not a split
    """
    if not args.model_overrides:
        return
    register_models(args.user_dir)
    from fairseq_ctxgates.tasks.model_overrides import refuse_unread_overrides
    from fairseq_ctxgates.tasks.task_streams import task_option_names

    models, task_options = [], set()
    for path in paths:
        inference = Inference.from_options(args, path)
        models.append(inference.model_options)
        task_options.update(inference.config.task)
    task_options &= task_option_names(has_criterion=False, reads_lines=reads_lines)
    refuse_unread_overrides(args.model_overrides, models, task_options)
