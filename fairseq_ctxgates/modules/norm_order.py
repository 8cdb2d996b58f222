"""Where a decoder layer normalizes: the one module that reads the norm order."""

from enum import Enum
from typing import Callable, NamedTuple, Optional

from torch import Tensor


class NormOrder(Enum):
    """The place of layer normalization (ln) in a sublayer f with its residual connection.

    ======  ==================  ====================================
    order   x' is               known as
    ======  ==================  ====================================
    POST    ln(x + f(x))        post-norm, Vaswani et al. 2017
    PRE     x + f(ln(x))        pre-norm, ``--decoder-normalize-before``
    INNER   x + ln(f(x))        Li et al. 2020, equations 2 and 3: rn after ln after att
    ======  ==================  ====================================
    """

    POST = "post"
    PRE = "pre"
    INNER = "inner"

    @classmethod
    def choose(cls, norm_order: Optional[str], normalize_before: bool) -> "NormOrder":
        """``--decoder-norm-order``, or without it what ``--decoder-normalize-before`` says."""
        if norm_order:
            return cls(str(norm_order))
        return cls.PRE if normalize_before else cls.POST


class SublayerNorm(NamedTuple):
    """The layer normalization of one sublayer, applied in the place that the norm order gives it."""

    order: NormOrder
    norm: Callable[[Tensor], Tensor]

    def input(self, x: Tensor) -> Tensor:
        """What the sublayer reads."""
        return self.norm(x) if self.order is NormOrder.PRE else x

    def add(self, x: Tensor, output: Tensor) -> Tensor:
        """The residual connection: x plus the sublayer's output, normalized as the norm order says."""
        if self.order is NormOrder.POST:
            return self.norm(x + output)
        return x + self.normalize_output(output)

    def normalize_output(self, output: Tensor) -> Tensor:
        """The sublayer's output when it is not added to x but is a context of its own, such as the source context s."""
        return output if self.order is NormOrder.PRE else self.norm(output)
