"""The options that decide how a model reads its input, as entries of its checkpoints."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, MutableMapping, Optional

import torch
from torch import Tensor, nn

from fairseq_ctxgates.configuration import as_flag, as_given

# The beginning of an entry's name. torch prints the whole name if a checkpoint has an entry that its model lacks.
NEEDS = "needs --user-dir and --task context_translation: trained with "
Values = Dict[str, Optional[str]]


class InputOptions:
    """The task's options that decide how a model reads its input, kept among the parameters of its checkpoints.

    fairseq keeps a task's own state for commands that decode, and gives it to whatever task they have; training never
    reads it. Parameters, however, are loaded in every command, and strictly. So each option is an entry beside the
    parameters, without values and named after what the model needs. Resumed training finds its options there, and every
    other task, even without this package, stops at the entry.

    Attributes:
        values: for every such option of the task, the value that the model's next checkpoint keeps, or None
        loaded: the values in the checkpoint that was loaded into the model; None before one is loaded
    """

    def __init__(self, values: Values) -> None:
        self.values = values
        self.loaded: Optional[Values] = None

    def attach(self, model: Any) -> None:
        """Become a model's ``input_options``; the model may be of any class."""
        model.input_options = self
        model._register_state_dict_hook(self._save)
        model._register_load_state_dict_pre_hook(self._load)

    def _save(self, model: nn.Module, state: MutableMapping[str, Tensor], prefix: str, _: object) -> None:
        for name, value in self.values.items():
            if value is not None:
                state[f"{prefix}{NEEDS}{as_given(name, value)}"] = torch.zeros(0)

    def _load(self, state: MutableMapping[str, Tensor], prefix: str, *_: object) -> None:
        """Take out the entries of the task's options. Any other entry, of a user's own stream, is left for torch to
        refuse."""
        self.loaded = {name: _pop(state, f"{prefix}{NEEDS}", as_flag(name)) for name in self.values}
        self.values = dict(self.loaded)  # copies of the model, such as those that fairseq averages, get them this way


def _pop(state: MutableMapping[str, Tensor], beginning: str, flag: str) -> Optional[str]:
    """Remove the entry of an option and return its value; None if there is no entry. A switch has the value True."""
    for name in state:
        option, _, value = name[len(beginning) :].partition(" ")
        if name.startswith(beginning) and option == flag:
            del state[name]
            return value or str(True)
    return None


def find_needs(names: Iterable[str]) -> List[str]:
    """The entries among the names of a checkpoint's parameters."""
    return [name for name in names if name.startswith(NEEDS)]
