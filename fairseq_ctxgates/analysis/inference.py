"""A trained model run over a split of a binarized data directory, with the reference as the decoder's input."""

from __future__ import annotations

import argparse
import ast
import logging
import warnings
from pathlib import Path
from typing import Any, Dict, Iterator, Optional

import torch
from fairseq import checkpoint_utils, utils

import fairseq_ctxgates  # noqa: F401  registers what a checkpoint may be made of
from fairseq_ctxgates.data.side_stream import find_splits
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.tasks.context_translation import ContextTranslationTask


def add_inference_options(parser: argparse.ArgumentParser) -> None:
    """The options of every analysis that runs a model over a split, named as in ``fairseq-validate``."""
    parser.add_argument("data", help="binarized data directory")
    parser.add_argument("-s", "--source-lang", metavar="SRC", help="source language (default: as in training)")
    parser.add_argument("-t", "--target-lang", metavar="TRG", help="target language (default: as in training)")
    parser.add_argument("--path", required=True, metavar="CHECKPOINT", help="the trained model")
    parser.add_argument("--gen-subset", default="test", metavar="SPLIT", help="data split to run over (default: test)")
    add_batch_options(parser)


def add_batch_options(parser: argparse.ArgumentParser) -> None:
    """How large a batch is, where it is computed, and with which of the model's options changed."""
    parser.add_argument("--max-tokens", type=int, metavar="N", help="maximum number of tokens in a batch")
    parser.add_argument(
        "--batch-size", type=int, metavar="N", help="maximum number of sentences in a batch (default: 64)"
    )
    parser.add_argument("--cpu", action="store_true", help="use the CPU even where there is a GPU")
    parser.add_argument(
        "--model-overrides",
        type=options_by_name,
        default={},
        metavar="DICT",
        help="options that replace those of training, as fairseq-generate's: \"{'inter_sentence_ablation': 'null'}\"",
    )


def options_by_name(text: str) -> Dict[str, Any]:
    """A Python dictionary, as ``fairseq-generate --model-overrides`` reads it."""
    try:
        return dict(ast.literal_eval(text))
    except (SyntaxError, TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a dictionary such as {{'dropout': 0.1}}") from error


def quiet_logging() -> None:
    """Log warnings only: fairseq lets every library log to the terminal, which would bury an analysis's table."""
    logging.getLogger().setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*pin_memory")  # fairseq asks for it, GPU or none


class Inference:
    """One checkpoint, in evaluation mode, on a data directory.

    Args:
        path: the checkpoint
        data: binarized data directory
        cpu: stay on the CPU even where there is a GPU
        overrides: options that replace those of training, by name

    Raises:
        UserError: the checkpoint, the data directory or a dictionary in it is not there.
    """

    def __init__(self, path: str, data: str, cpu: bool = False, **overrides: Any) -> None:
        if not Path(path).is_file():
            raise UserError(f"{path} not found: give a checkpoint of fairseq-train to --path")
        self.path = path
        self.data_dir = Path(utils.split_paths(data)[0])
        try:
            (self.model,), self.config, self.task = checkpoint_utils.load_model_ensemble_and_task(
                [path], {"data": data, **overrides}
            )
        except FileNotFoundError as error:
            raise UserError(f"{error.filename} not found: give the --destdir of fairseq-preprocess") from error
        if isinstance(self.task, ContextTranslationTask):
            self.task.refuse_unread_overrides(overrides)
        self.device = torch.device("cuda" if torch.cuda.is_available() and not cpu else "cpu")
        self.model.to(self.device).eval()

    @classmethod
    def from_options(cls, args: argparse.Namespace, **overrides: Any) -> Inference:
        """What the options of :func:`add_inference_options` ask for, with these overrides."""
        languages = {"source_lang": args.source_lang, "target_lang": args.target_lang}
        overrides.update({name: language for name, language in languages.items() if language})
        return cls(args.path, args.data, args.cpu, **{**args.model_overrides, **overrides})

    def load_split(self, split: str) -> Any:
        """The dataset of a split.

        Raises:
            UserError: the data directory has no such split; the message names those it has.
        """
        source, target = self.task.cfg.source_lang, self.task.cfg.target_lang
        splits = [found.name for found in find_splits(self.data_dir, source, target)]
        if split not in splits:
            raise UserError(f"{self.data_dir} has no split {split!r} of {source}-{target}: it has {', '.join(splits)}")
        self.task.load_dataset(split, task_cfg=self.config.task)
        return self.task.dataset(split)

    def batches(
        self, split: str, max_tokens: Optional[int] = None, batch_size: Optional[int] = None
    ) -> Iterator[Dict[str, Any]]:
        """fairseq's batches of a split, on the model's device; of 64 sentences where no size is given."""
        epoch = self.task.get_batch_iterator(
            self.load_split(split),
            max_tokens=max_tokens,
            max_sentences=batch_size or (None if max_tokens else 64),
            max_positions=utils.resolve_max_positions(self.task.max_positions(), self.model.max_positions()),
            ignore_invalid_inputs=True,
        )
        for batch in epoch.next_epoch_itr(shuffle=False):
            yield self.to_device(batch)

    def to_device(self, batch: Dict[str, Any]) -> Dict[str, Any]:
        """The batch where the model is."""
        moved: Dict[str, Any] = utils.move_to_cuda(batch) if self.device.type == "cuda" else batch
        return moved
