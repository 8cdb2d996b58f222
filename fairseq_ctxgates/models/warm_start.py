"""Starting a model with mechanisms from a trained plain one (``--warm-start``)."""

import logging
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Collection, Iterable, List, Mapping, Optional

import torch
from fairseq.dataclass import FairseqDataclass
from torch import Tensor

from fairseq_ctxgates.checkpoints.loading import load_checkpoint, options_of
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.models.context_model import ContextModel, find_misfits
from fairseq_ctxgates.models.input_options import find_needs
from fairseq_ctxgates.models.kept_options import find_change

logger = logging.getLogger(__name__)


@dataclass
class WarmStartConfig(FairseqDataclass):
    """The option ``--warm-start``, the same on every backbone."""

    warm_start: Optional[str] = field(
        default=None,
        metadata={
            "help": "initialize everything but the mechanisms' own parameters from this checkpoint, at the start of "
            "training (with the task context_translation)"
        },
    )


def warm_start(model: ContextModel, path: str, options: object) -> None:
    """Initialize everything but the mechanisms' own parameters from a checkpoint.

    Only at the start of training: a saved checkpoint of the model itself is always loaded strictly.

    Args:
        options: those of the model, as attributes

    Raises:
        UserError: the checkpoint cannot be loaded, or lacks other parameters than the mechanisms', or has parameters
            that the model does not have, or that have another shape in the model, or that differ although the model
            shares them; or its model computes something else from them.
    """
    if Path(path).is_dir():
        raise UserError(f"--warm-start {path} is a folder: name a checkpoint in it")
    if not Path(path).is_file():
        raise UserError(f"--warm-start {path}: no such file (leave the option out when training is resumed)")
    try:
        checkpoint = load_checkpoint(Path(path))
    except UserError as error:
        raise UserError(f"--warm-start {error}") from error
    change = find_change(options_of(checkpoint), options, model.mechanisms)
    if change is not None:
        raise UserError(f"--warm-start {path}: its model was {change}: train with the same")
    state = checkpoint["model"]
    model.upgrade_state_dict(state)
    for entry in find_needs(state):  # the new model may be given another input
        del state[entry]
    parameters = model.state_dict()
    mechanism_parameters = model.mechanism_parameters()
    _check_fits(state, parameters, mechanism_parameters, path)
    new = [name for name in parameters if name not in state]
    sources = {name: mechanism_parameters[name] for name in new}
    copies = {name: state[source] for name, source in sources.items() if source is not None}
    model.load_state_dict({**parameters, **state, **copies}, strict=True)
    model.warm_started_from = path
    logger.info(
        f"warm start from {path}: {len(state)} parameters taken over, {len(new)} of the mechanisms' own are new "
        f"({len(copies)} of them start as copies)"
    )


def _check_fits(
    state: Mapping[str, Tensor], parameters: Mapping[str, Tensor], mechanism_parameters: Collection[str], path: str
) -> None:
    """Raise UserError unless a checkpoint has the model's own parameters, with or without those of the mechanisms."""
    missing, unknown, reshaped = find_misfits(state, parameters)
    for names, what in (
        ([name for name in missing if name not in mechanism_parameters], "lacks"),
        (unknown, "has parameters that the model does not have:"),
        (reshaped, "has parameters of other shapes:"),
    ):
        if names:
            raise UserError(f"--warm-start {path}: the checkpoint {what} {', '.join(names)}")
    for names in _shared(parameters):
        taken = [state[name] for name in names if name in state]
        if any(not torch.equal(parameter, taken[0]) for parameter in taken):
            raise UserError(
                f"--warm-start {path}: {' and '.join(names)} are one in the model (--share-all-embeddings, "
                f"--share-decoder-input-output-embed) and different in the checkpoint"
            )


def _shared(parameters: Mapping[str, Tensor]) -> Iterable[List[str]]:
    """The names of parameters that are one and the same, such as tied embeddings."""
    names = defaultdict(list)
    for name, parameter in parameters.items():
        names[parameter.data_ptr(), parameter.shape].append(name)
    return (shared for shared in names.values() if len(shared) > 1)
