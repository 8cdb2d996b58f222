"""``ctxgates average-checkpoints``: one checkpoint whose parameters are the mean of several checkpoints' parameters.

The options are those of fairseq's ``scripts/average_checkpoints.py``, which neither fairseq package installs.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import torch

from fairseq_ctxgates.checkpoints.loading import load_checkpoint
from fairseq_ctxgates.checkpoints.saving import check_output, save_checkpoint
from fairseq_ctxgates.command_line import CommandParser
from fairseq_ctxgates.errors import UserError

EPOCH_CHECKPOINT = re.compile(r"checkpoint(\d+)\.pt")
UPDATE_CHECKPOINT = re.compile(r"checkpoint_\d+_(\d+)\.pt")
BEST_CHECKPOINT = re.compile(r"checkpoint\.best_.+_(-?\d+\.\d+)\.pt")
SHOWN = {
    EPOCH_CHECKPOINT: "checkpointEPOCH.pt",
    UPDATE_CHECKPOINT: "checkpoint_EPOCH_UPDATE.pt",
    BEST_CHECKPOINT: "checkpoint.best_METRIC_VALUE.pt",
}


def newest_checkpoints(
    directory: Path, pattern: re.Pattern[str], count: int, upper_bound: Optional[int] = None
) -> List[Path]:
    """The last checkpoints of a training run, oldest first.

    Args:
        directory: the ``--save-dir`` of the training run
        pattern: ``EPOCH_CHECKPOINT`` or ``UPDATE_CHECKPOINT``; its group is the epoch or the update
        count: number of checkpoints
        upper_bound: the last epoch or update to use

    Raises:
        UserError: the directory does not exist, or has fewer checkpoints than this number
    """
    if count < 1:
        raise UserError(f"cannot average {count} checkpoints: ask for 1 or more")
    if not directory.is_dir():
        raise UserError(f"{directory} is not a directory: give the --save-dir of the training run to --inputs")
    matches = ((pattern.fullmatch(path.name), path) for path in directory.iterdir())
    numbered = sorted((int(match[1]), path) for match, path in matches if match)
    found = [path for position, path in numbered if upper_bound is None or position <= upper_bound]
    if len(found) < count:
        bound = "" if upper_bound is None else f" up to {upper_bound}"
        raise UserError(
            f"{directory} has {len(found)} checkpoints named like {SHOWN[pattern]}{bound}, "
            f"{count} were asked for: ask for fewer, or check --no-epoch-checkpoints, --keep-last-epochs and "
            f"--keep-interval-updates of the training run"
        )
    return found[-count:]


def best_checkpoints(inputs: Sequence[Path], count: int) -> List[Path]:
    """The best checkpoints of ``--keep-best-checkpoints``, the best one last.

    Args:
        inputs: the ``--save-dir`` of the training run, or some of its checkpoints
        count: number of checkpoints

    Raises:
        UserError: there are fewer checkpoints than this number, or the first one cannot be read
    """
    if len(inputs) == 1 and not inputs[0].exists():
        raise UserError(f"{inputs[0]} not found: give the --save-dir of the training run to --inputs")
    paths = sorted(inputs[0].iterdir()) if len(inputs) == 1 and inputs[0].is_dir() else inputs
    matches = ((BEST_CHECKPOINT.fullmatch(path.name), path) for path in paths)
    scored = sorted((float(match[1]), path) for match, path in matches if match)
    if not 1 <= count <= len(scored):
        raise UserError(
            f"{', '.join(map(str, inputs))}: {len(scored)} checkpoints named like {SHOWN[BEST_CHECKPOINT]}, "
            f"{count} were asked for: check --keep-best-checkpoints of the training"
        )
    state = load_checkpoint(scored[0][1])
    options = state["cfg"]["checkpoint"] if state.get("cfg") else vars(state["args"])
    if not options["maximize_best_checkpoint_metric"]:
        scored.reverse()
    return [path for _, path in scored[-count:]]


def average_checkpoints(paths: Sequence[Path]) -> Dict[str, Any]:
    """The last checkpoint, with each parameter replaced by its mean over all checkpoints.

    Sums are computed in float64, and each parameter keeps its type. Tensors of integers, such as counters, are not
    averaged: they are those of the last checkpoint, as is everything that is not a parameter.

    Raises:
        UserError: a checkpoint cannot be read, or its parameters have other names or shapes than those of the first
    """
    sums: Dict[str, torch.Tensor] = {}
    for path in paths:
        state = load_checkpoint(path)
        parameters = {name: value for name, value in state["model"].items() if value.is_floating_point()}
        if not sums:
            sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in parameters.items()}
        _check_same_parameters(sums, parameters, paths[0], path)
        for name, value in parameters.items():
            sums[name] += value
    for name, total in sums.items():
        state["model"][name].copy_(total / len(paths))  # in place: parameters that share memory are still saved once
    return state


def _check_same_parameters(
    expected: Dict[str, torch.Tensor], found: Dict[str, torch.Tensor], expected_path: Path, found_path: Path
) -> None:
    missing = [f"{name} is missing" for name in expected if name not in found]
    added = [f"{name} is not in the first" for name in found if name not in expected]
    reshaped = [
        f"{name} has shape {tuple(found[name].shape)}, in the first {tuple(value.shape)}"
        for name, value in expected.items()
        if name in found and found[name].shape != value.shape
    ]
    differences = missing + added + reshaped
    if differences:
        shown = "; ".join(differences[:5]) + ("; ..." if len(differences) > 5 else "")
        raise UserError(f"{found_path} is a checkpoint of another model than {expected_path}: {shown}")


def get_parser() -> CommandParser:
    """The options of ``ctxgates average-checkpoints``."""
    parser = CommandParser(
        description="Average the parameters of checkpoints. The new checkpoint is otherwise equal to the last one."
    )
    parser.add_argument(
        "--inputs",
        required=True,
        action="extend",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="checkpoint files; with --num-epoch-checkpoints, --num-update-checkpoints or --num-best-checkpoints the "
        "directory that they are in",
    )
    parser.add_argument("--output", required=True, type=Path, metavar="FILE", help="the checkpoint to write")
    chosen = parser.add_mutually_exclusive_group()
    for kind, averaged in (
        ("epoch", "checkpoints of the last N epochs, checkpointEPOCH.pt"),
        ("update", "last N checkpoints of --save-interval-updates, checkpoint_EPOCH_UPDATE.pt"),
        ("best", "N best checkpoints of --keep-best-checkpoints, checkpoint.best_METRIC_VALUE.pt"),
    ):
        chosen.add_argument(f"--num-{kind}-checkpoints", type=int, metavar="N", help=f"average the {averaged}")
    parser.add_argument(
        "--checkpoint-upper-bound",
        type=int,
        metavar="N",
        help="the last epoch (with --num-epoch-checkpoints) or update (with --num-update-checkpoints) to use",
    )
    parser.add_condition(
        "--num-epoch-checkpoints or --num-update-checkpoints",
        lambda args: args.num_epoch_checkpoints is not None or args.num_update_checkpoints is not None,
        "checkpoint_upper_bound",
    )
    return parser


def _chosen_checkpoints(args: argparse.Namespace) -> List[Path]:
    if args.num_best_checkpoints is not None:
        return best_checkpoints(args.inputs, args.num_best_checkpoints)
    if args.num_epoch_checkpoints is None and args.num_update_checkpoints is None:
        for folder in filter(Path.is_dir, args.inputs):
            raise UserError(
                f"--inputs {folder} is a folder: name files in it, or give --num-epoch-checkpoints, "
                f"--num-update-checkpoints or --num-best-checkpoints"
            )
        return args.inputs
    if len(args.inputs) != 1:
        raise UserError("--num-epoch-checkpoints and --num-update-checkpoints need one directory as --inputs")
    if args.num_epoch_checkpoints is not None:
        pattern, count = EPOCH_CHECKPOINT, args.num_epoch_checkpoints
    else:
        pattern, count = UPDATE_CHECKPOINT, args.num_update_checkpoints
    return newest_checkpoints(args.inputs[0], pattern, count, args.checkpoint_upper_bound)


def main(argv: Optional[List[str]] = None) -> None:
    """Run ``ctxgates average-checkpoints``."""
    args = get_parser().parse_args(argv)
    check_output(args.output)
    paths = _chosen_checkpoints(args)
    print(f"averaging {len(paths)} checkpoints: {', '.join(map(str, paths))}", flush=True)
    save_checkpoint(average_checkpoints(paths), args.output)
    print(f"wrote {args.output}")
