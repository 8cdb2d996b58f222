"""Packages that only some commands need. Each command's packages are an extra of ``setup.py``."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Iterator

from fairseq_ctxgates.errors import UserError


@contextmanager
def needs_extra(extra: str, purpose: str) -> Iterator[None]:
    """Import packages of an extra in this block.

    Args:
        purpose: what needs them, for the error message

    Raises:
        UserError: a package cannot be imported; the message has the command that installs the extra
    """
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", __name__.partition(".")[0]):  # not a missing package: an error in this one
            raise
        raise UserError(f"{purpose} needs {package} ({error}): pip install 'fairseq-ctxgates[{extra}]'") from error
