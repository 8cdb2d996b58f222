"""Lists of layers as the options write them: ``all``, ``6``, ``1,3-5``."""

import re
from typing import Set, Tuple

from fairseq_ctxgates.errors import UserError


def parse_layers(text: str, num_layers: int, option: str) -> Tuple[int, ...]:
    """The layer numbers that a list names, from 1 at the bottom, in ascending order.

    Args:
        text: ``all``, a number, or numbers and ranges joined by commas
        num_layers: how many layers the model has
        option: the option the text was given to, for the error message

    Raises:
        UserError: the text is not such a list, or names a layer that the model does not have.
    """
    if text == "all":
        return tuple(range(1, num_layers + 1))
    layers: Set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        if not match:
            raise UserError(f"{option} {text}: write `all`, `6` or `1,3-5`")
        first, last = int(match[1]), int(match[2] or match[1])
        if not 1 <= first <= last <= num_layers:
            raise UserError(f"{option} {text}: the model has layers 1 to {num_layers}")
        layers.update(range(first, last + 1))
    return tuple(sorted(layers))
