"""A pass over data in which each translation may continue what precedes it."""

from __future__ import annotations

from typing import Any, Optional, Sequence

from fairseq_ctxgates.data.side_stream import Batch, TargetContext
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.tasks.continuing_generator import CONTEXT, ContinuingGenerator

NO_ALIGNMENT = (
    "--print-alignment and --replace-unk do not go with a model that reads the preceding translations: leave them out"
)


class TranslationPass:
    """One pass over the data.

    Args:
        context: what the translations continue; None: nothing
        is_shared_out: whether several processes share out the data
    """

    def __init__(self, context: Optional[TargetContext] = None, is_shared_out: bool = False) -> None:
        self.context = context
        self.is_shared_out = is_shared_out

    def check_alone(self) -> None:
        """Raise UserError where translations continue others, which another process makes."""
        if self.context is not None and self.context.is_translated and self.is_shared_out:
            raise UserError(
                "a model that reads the preceding translations translates in one process: leave out --num-shards, give "
                "--distributed-world-size 1, and train without --eval-bleu on several"
            )

    def add_context(self, generator: Any, batch: Batch) -> None:
        """Add to a batch what its translations continue, as :class:`ContinuingGenerator` takes it.

        Raises:
            UserError: the generator is another one, or as :meth:`check_alone`.
        """
        if self.context is None:
            return
        self.check_alone()
        if not isinstance(generator, ContinuingGenerator):
            raise UserError(NO_ALIGNMENT)
        batch[CONTEXT] = self.context.tokens(batch, longest=generator.max_len // 2)

    def keep(self, batch: Batch, found: Sequence[Any]) -> None:
        """Keep the best translation of each sentence of a batch for those that continue it."""
        if self.context is not None:
            self.context.keep(batch, [hypotheses[0]["tokens"] for hypotheses in found])
