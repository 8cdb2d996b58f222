"""A pass over data in which each translation may continue what precedes it."""

from __future__ import annotations

from typing import Any, Optional, Sequence

from fairseq_ctxgates.data.side_stream import Batch, PrecedingTarget
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.tasks.continuing_generator import CONTEXT, ContinuingGenerator

NO_ALIGNMENT = (
    "--print-alignment and --replace-unk cannot be combined with a model that reads the preceding translations: "
    "leave them out"
)


class TranslationPass:
    """One pass over the data.

    Args:
        context: the text that the translations continue; None if they continue none
        is_shared_out: whether the data are divided among several processes
    """

    def __init__(self, context: Optional[PrecedingTarget] = None, is_shared_out: bool = False) -> None:
        self.context = context
        self.is_shared_out = is_shared_out

    def check_alone(self) -> None:
        """Raise UserError if translations continue others that another process makes."""
        if self.context is not None and self.context.made_of_translations and self.is_shared_out:
            raise UserError(
                "a model that reads the preceding translations translates in one process: give "
                "--distributed-world-size 1, and train without --eval-bleu on several"
            )

    def add_context(self, generator: Any, batch: Batch) -> None:
        """Add to a batch the text that its translations continue, as :class:`ContinuingGenerator` reads it.

        Raises:
            UserError: the generator is not a :class:`ContinuingGenerator`, or as :meth:`check_alone`.
        """
        if self.context is None:
            return
        self.check_alone()
        if not isinstance(generator, ContinuingGenerator):
            raise UserError(NO_ALIGNMENT)
        batch[CONTEXT] = self.context.tokens(batch, longest=generator.max_len // 2)

    def keep(self, batch: Batch, found: Sequence[Any]) -> None:
        """Keep the best translation of each sentence of a batch for the translations that continue it."""
        if self.context is not None:
            self.context.keep(batch, [hypotheses[0]["tokens"] for hypotheses in found])
