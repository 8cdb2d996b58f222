"""The exception whose message is printed to the user without a traceback."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Iterator, NoReturn


class UserError(RuntimeError):
    """An error that the user can correct: the message names the problem, the file, and the remedy."""


def one_line(error: BaseException) -> str:
    """The message of another package's exception, for use within the message of a :class:`UserError`."""
    return " ".join(str(error).split())[:300]


@contextlib.contextmanager
def exit_on_user_error() -> Iterator[None]:
    """Print a :class:`UserError`, or that a file cannot be read or written, as one line on standard error and exit with
    status 1, without a traceback. After Ctrl-C the line is ``interrupted``, and the process ends by SIGINT.

    If standard output cannot be written, the status is 1 as well. If its reader has ended, as ``head`` does, nothing is
    printed.
    """
    try:
        yield
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.excepthook = lambda *_: None  # no traceback; Python then ends the process as SIGINT does
        raise
    except BrokenPipeError as error:
        _exit_without_output(error)
    except OSError as error:  # where nothing nearer says more, such as for a file that only another user may read
        if error.filename is None:
            raise
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        sys.exit(1)
    try:
        sys.stdout.flush()  # at exit, the error would be one of Python's shutdown
    except OSError as error:
        _exit_without_output(error)


def _exit_without_output(error: OSError) -> NoReturn:
    if not isinstance(error, BrokenPipeError):
        print(f"error: standard output: {error.strerror}", file=sys.stderr)
    # Python flushes again at exit, which would fail again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(1)
