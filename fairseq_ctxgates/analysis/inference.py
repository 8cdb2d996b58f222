"""A trained model run over a split of a binarized data directory, with the reference as the decoder's input."""

from __future__ import annotations

import argparse
import ast
import logging
import warnings
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

import torch
from fairseq import checkpoint_utils, utils
from fairseq.tasks.translation import TranslationTask

import fairseq_ctxgates  # noqa: F401  registers what a checkpoint may be made of
from fairseq_ctxgates.data.data_directory import Split, find_splits
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.tasks.context_translation import ContextTranslationTask


def add_inference_options(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """The options of every analysis that runs a model over a split, named as in ``fairseq-validate``; with ``several``
    there may be more than one model (see :func:`checkpoint_paths`)."""
    add_model_options(parser, several)
    parser.add_argument("--gen-subset", default="test", metavar="SPLIT", help="data split to run over (default: test)")
    add_batch_options(parser)


def add_model_options(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """Which model, or models, and the data directory that has its dictionaries."""
    parser.add_argument("data", help="binarized data directory")
    parser.add_argument("-s", "--source-lang", metavar="SRC", help="source language (default: as in training)")
    parser.add_argument("-t", "--target-lang", metavar="TRG", help="target language (default: as in training)")
    if several:
        parser.add_argument(
            "--path", required=True, nargs="+", metavar="CHECKPOINT", help="the trained models (a.pt b.pt or a.pt:b.pt)"
        )
    else:
        parser.add_argument("--path", required=True, metavar="CHECKPOINT", help="the trained model")


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


def checkpoint_paths(args: argparse.Namespace) -> List[str]:
    """The checkpoints that ``--path`` names, where it may name several."""
    return [path for given in args.path for path in utils.split_paths(given)]


def options_by_name(text: str) -> Dict[str, Any]:
    """A Python dictionary, as ``fairseq-generate --model-overrides`` reads it."""
    try:
        return dict(ast.literal_eval(text))
    except (SyntaxError, TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a dictionary such as {{'dropout': 0.1}}") from error


def quiet_logging() -> None:
    """Log warnings only: fairseq lets every library log to the terminal, which would bury an analysis's table."""
    logging.getLogger().setLevel(logging.WARNING)
    for message in ("pin_memory", "mismatched key_padding_mask"):  # what fairseq asks of torch
        warnings.filterwarnings("ignore", message=f".*{message}")


def reads_preceding(model: Any) -> bool:
    """Whether a model has an inter-sentence gate."""
    return "preceding" in getattr(model, "required_streams", ())


def find_split(data_dir: Path, name: str, source_lang: str, target_lang: str) -> Split:
    """A split of a data directory.

    Raises:
        UserError: there is no such directory or split; the message names the splits there are.
    """
    splits = {split.name: split for split in find_splits(data_dir, source_lang, target_lang)}
    if name not in splits:
        raise UserError(f"{data_dir} has no split {name!r} of {source_lang}-{target_lang}: it has {', '.join(splits)}")
    return splits[name]


class Inference:
    """One checkpoint, in evaluation mode, on a data directory.

    Args:
        path: the checkpoint
        data: binarized data directory
        cpu: stay on the CPU even where there is a GPU
        overrides: options that replace those of training, by name

    Raises:
        UserError: the checkpoint, the data directory or a dictionary in it is not there, or they do not fit each other.
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
        except UserError:
            raise
        except (OSError, EOFError, KeyError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:300]
            raise UserError(
                f"{path} is no whole checkpoint of fairseq, or was trained with other dictionaries than {data} holds "
                f"({reason})"
            ) from error
        if not isinstance(self.task, TranslationTask):
            raise UserError(f"{path} was trained with --task {self.config.task._name}, which is not one of translation")
        if isinstance(self.task, ContextTranslationTask):
            self.task.refuse_unread_overrides(overrides)
        self.device = torch.device("cuda" if torch.cuda.is_available() and not cpu else "cpu")
        self.model.to(self.device).eval()

    @classmethod
    def from_options(cls, args: argparse.Namespace, path: Optional[str] = None, **overrides: Any) -> Inference:
        """What the options of :func:`add_inference_options` ask for, with these overrides; ``path`` is the model's
        where there are several."""
        languages = {"source_lang": args.source_lang, "target_lang": args.target_lang}
        overrides.update({name: language for name, language in languages.items() if language})
        return cls(path or args.path, args.data, args.cpu, **{**args.model_overrides, **overrides})

    def split(self, name: str) -> Split:
        """A split of the data directory; UserError as for :func:`find_split`."""
        return find_split(self.data_dir, name, self.task.cfg.source_lang, self.task.cfg.target_lang)

    def load_split(self, split: str) -> Any:
        """The dataset of a split; UserError as for :meth:`split`."""
        self.split(split)
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
