"""The one exception that is meant for the user."""

from __future__ import annotations

import contextlib
import sys
from typing import Iterator


class UserError(RuntimeError):
    """Something the user can mend: the message says what is wrong, in which file, and what to do."""


@contextlib.contextmanager
def exit_on_user_error() -> Iterator[None]:
    """Print a :class:`UserError` as one line on standard error and exit with status 1, without a traceback."""
    try:
        yield
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
