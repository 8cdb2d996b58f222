"""Where a decoder layer normalises: the one module that reads the norm order."""

from enum import Enum
from typing import Callable

from torch import Tensor

Norm = Callable[[Tensor], Tensor]


class NormOrder(Enum):
    """The place of layer normalisation (ln) about a sublayer f with its residual connection.

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

    def input(self, norm: Norm, x: Tensor) -> Tensor:
        """What the sublayer reads."""
        return norm(x) if self is NormOrder.PRE else x

    def add(self, norm: Norm, x: Tensor, branch: Tensor) -> Tensor:
        """The residual connection: x with what the sublayer returned added."""
        if self is NormOrder.POST:
            return norm(x + branch)
        return x + self.branch(norm, branch)

    def branch(self, norm: Norm, branch: Tensor) -> Tensor:
        """What the sublayer returned where it is not added to x but stands on its own, as the source context s does."""
        return branch if self is NormOrder.PRE else norm(branch)
