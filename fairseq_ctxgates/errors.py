"""The exception whose message is printed to the user without a traceback."""

from __future__ import annotations

import contextlib
import sys
from typing import Iterator


class UserError(RuntimeError):
    """An error that the user can correct: the message names the problem, the file, and the remedy."""


def one_line(error: BaseException) -> str:
    """The message of another package's exception, for use within the message of a :class:`UserError`."""
    return " ".join(str(error).split())[:300]


@contextlib.contextmanager
def exit_on_user_error() -> Iterator[None]:
    """Print a :class:`UserError` as one line on standard error and exit with status 1, without a traceback."""
    try:
        yield
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
