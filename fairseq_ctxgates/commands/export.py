"""``ctxgates export``: a ``context_transformer`` without mechanisms as a checkpoint of fairseq's own ``transformer``.

    ctxgates export --path checkpoints/plain/checkpoint_best.pt --output transformer.pt
    fairseq-generate data-bin/X --path transformer.pt

The new checkpoint needs no ``--user-dir``. It holds only tensors, numbers, text and containers of these, so that every
torch loads it without running code. The state of the optimizer is left out.

    ctxgates export --path checkpoints/plain/checkpoint_best.pt --output transformer.pt --for-ctranslate2
    ct2-fairseq-converter --model_path transformer.pt --data_dir data-bin/X --source_lang de --target_lang en \\
        --output_dir ctranslate2 --unsafe_deserialization

CTranslate2's converter reads the options as the attributes of an object. fairseq wrote such an object before 0.10.2,
and torch does not load it without being told to trust the file.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import fields
from pathlib import Path
from typing import Any, Dict, List, Optional, Type

from fairseq.dataclass import FairseqDataclass
from fairseq.models import BaseFairseqModel

from fairseq_ctxgates.checkpoints.loading import load_checkpoint
from fairseq_ctxgates.checkpoints.saving import check_output, save_checkpoint
from fairseq_ctxgates.command_line import CommandParser
from fairseq_ctxgates.compat import ARCH_MODEL_REGISTRY, LabelSmoothedCrossEntropyCriterionConfig, TranslationConfig
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.models.input_options import find_needs
from fairseq_ctxgates.modules.norm_order import NormOrder
from fairseq_ctxgates.user_dir import register_models


def get_parser() -> CommandParser:
    """The command's options."""
    parser = CommandParser(
        description="Turn a checkpoint of context_transformer with all mechanisms off into one of fairseq's own "
        "transformer, which needs no --user-dir and gives the same translations."
    )
    parser.add_argument("--path", required=True, type=Path, metavar="CHECKPOINT", help="the trained model")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE", help="the checkpoint to write")
    parser.add_argument(
        "--for-ctranslate2",
        action="store_true",
        help="write what CTranslate2's converter reads with --unsafe_deserialization, in place of what fairseq reads",
    )
    parser.add_argument(
        "--user-dir", metavar="DIR", help="folder of your own models or mechanisms, as for fairseq-train"
    )
    return parser


def main(argv: Optional[List[str]] = None) -> None:
    """Run ``ctxgates export``.

    Raises:
        UserError: the checkpoint cannot be read, or stock fairseq has no such model
    """
    args = get_parser().parse_args(argv)
    check_output(args.output)
    if args.output.exists() and args.path.exists() and args.output.samefile(args.path):
        raise UserError(
            f"--output {args.output} is the checkpoint of --path, which can be trained on: name another file"
        )
    register_models(args.user_dir)
    state = export(load_checkpoint(args.path), args.path)
    save_checkpoint(with_namespace(state) if args.for_ctranslate2 else state, args.output)
    reader = "CTranslate2's converter" if args.for_ctranslate2 else "fairseq"
    print(f"wrote {args.output}, a transformer for {reader}")


def export(state: Dict[str, Any], path: Path) -> Dict[str, Any]:
    """The checkpoint of stock fairseq.

    Args:
        state: the checkpoint of this package
        path: its name, for error messages

    Raises:
        UserError: stock fairseq has no such model; the message says why
    """
    cfg = state.get("cfg")
    if not isinstance(cfg, dict):
        raise UserError(f"{path} has no options of a model of this package: there is nothing to export")
    for need in find_needs(state["model"]):
        raise UserError(f"{path} cannot be exported: it {need}")
    return {
        "args": None,
        "cfg": {
            **cfg,
            "common": {**cfg["common"], "user_dir": None},
            "model": {"_name": "transformer", "arch": "transformer", **model_options(cfg["model"], path)},
            "task": {"_name": "translation", **among(TranslationConfig, cfg["task"])},
            "criterion": {
                "_name": "label_smoothed_cross_entropy",
                **among(LabelSmoothedCrossEntropyCriterionConfig, cfg["criterion"]),
            },
        },
        "model": dict(state["model"]),
        "criterion": None,
        "optimizer_history": [{"optimizer_name": "none", "lr_scheduler_state": {}, "num_updates": 0}],
        "task_state": {},
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
        "last_optimizer_state": None,
    }


def with_namespace(state: Dict[str, Any]) -> Dict[str, Any]:
    """An exported checkpoint with its options in one namespace, as before fairseq had groups of options."""
    groups = {name: dict(state["cfg"][name]) for name in ("common", "criterion", "task", "model")}
    names = {
        "arch": groups["model"]["arch"],
        "task": groups["task"]["_name"],
        "criterion": groups["criterion"]["_name"],
    }
    options = {name: value for group in groups.values() for name, value in group.items() if name != "_name"}
    return {**state, "args": Namespace(**{**options, **names}), "cfg": None}


def among(config: Type[FairseqDataclass], values: Any) -> Dict[str, Any]:
    """The values in a checkpoint that are options of one of fairseq's dataclasses."""
    given = values if isinstance(values, dict) else vars(values)
    return {
        option.name: given[option.name] for option in fields(config) if option.name in given and option.name != "_name"
    }


def model_options(values: Any, path: Path) -> Dict[str, Any]:
    """The options of fairseq's ``transformer`` for the same model.

    Args:
        values: the options of the checkpoint's ``model``

    Raises:
        UserError: stock fairseq has no such model
    """
    # Importing these registers architectures; a --user-dir must register its own first.
    from fairseq_ctxgates.models.context_model import ContextModel
    from fairseq_ctxgates.models.context_transformer import ContextTransformerModel
    from fairseq_ctxgates.models.context_transformer_align import ContextTransformerAlignModel
    from fairseq_ctxgates.models.transformer_config import stock_options, transformer_config

    arch = values.get("_name") if isinstance(values, dict) else getattr(values, "_name", None)
    model: Type[BaseFairseqModel] = ARCH_MODEL_REGISTRY.get(arch, BaseFairseqModel)
    if not issubclass(model, ContextModel):
        raise UserError(f"{path} is a model of {arch}, which is not of this package: there is nothing to export")
    if not issubclass(model, ContextTransformerModel):
        raise UserError(f"{path} cannot be exported: {arch} is an RNNSearch, which stock fairseq does not have")
    if issubclass(model, ContextTransformerAlignModel):
        raise UserError(f"{path} cannot be exported: {arch} prints other alignments than fairseq's transformer_align")
    options = model.Config(**among(model.Config, values))
    cfg = transformer_config(options)
    if cfg.mechanisms:
        names = ", ".join(mechanism.name for mechanism in cfg.mechanisms)
        raise UserError(
            f"{path} cannot be exported: the layers of {arch} have parts that fairseq's transformer does not have "
            f"({names}), and translate with them"
        )
    if cfg.decoder_norm_order is NormOrder.INNER:
        raise UserError(f"{path} cannot be exported: fairseq's transformer does not have --decoder-norm-order inner")
    return stock_options(options)
