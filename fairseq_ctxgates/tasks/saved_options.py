"""The task's options that a checkpoint keeps, because its model's input depends on them."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Type

from fairseq.dataclass import FairseqDataclass

from fairseq_ctxgates.configuration import as_flag, as_given, from_text
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.models.input_options import Values


class SavedOptions:
    """Gives a task the values that its checkpoints were trained with, for those of these options that are not given.

    Args:
        cfg: the task's options, before any is taken from a checkpoint
        config: their dataclass
        differs: for each option that checkpoints keep, whether a model that was trained without it reads another input;
            see :attr:`~fairseq_ctxgates.data.side_stream.SideStream.saved_options`
    """

    def __init__(self, cfg: FairseqDataclass, config: Type[FairseqDataclass], differs: Mapping[str, bool]) -> None:
        self.cfg, self.config = cfg, config
        self.differs = differs
        self.not_given = [name for name in differs if getattr(cfg, name) is None]
        self._trained_with: List[Values] = []

    def take_from(self, state: Dict[str, Any]) -> None:
        """Take the options out of the task's state in a checkpoint, one of those to translate with.

        Raises:
            UserError: the models of an ensemble were trained on different inputs.
        """
        trained = {name: state.pop(name, None) for name in self.differs}
        if not self._trained_with and not self.cfg.path:  # torch.hub: the task is the first checkpoint's
            self.not_given += [name for name, value in trained.items() if value == str(getattr(self.cfg, name))]
        self._trained_with.append(trained)
        for name in self.not_given:
            values = {trained[name] for trained in self._trained_with}
            if not self.differs[name] and len(values) > 1:
                values.discard(None)
            if len(values) > 1:
                raise UserError(
                    f"--path: one model was trained with {as_flag(name)}, another without or with another value, and "
                    f"all models of an ensemble read the same input"
                )
            self._set(name, values.pop())

    def go_on_with(self, trained: Values) -> None:
        """Take the options from the checkpoint that training goes on from."""
        for name in self.not_given:
            self._set(name, trained[name])

    def _set(self, name: str, value: Optional[str]) -> None:
        setattr(self.cfg, name, from_text(self.config, name, value))

    def check_as_trained(self, given: Values, trained: Values) -> None:
        """Raise UserError if a resumed training is given another value of an option than its checkpoint was trained
        with."""
        for name, differs in self.differs.items():
            value, before = given[name], trained[name]
            if value != before and (differs or before is not None):
                was = "without it" if before is None else f"with {as_given(name, before)}"
                now = f"without {as_flag(name)}" if value is None else as_given(name, value)
                raise UserError(
                    f"{now}: the checkpoint was trained {was}; "
                    f"leave the option out to continue that training, or begin a new training from that model with "
                    f"--finetune-from-model"
                )
