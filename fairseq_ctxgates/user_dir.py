"""Registers the models and tasks of a ``--user-dir``, for commands that do not run one of fairseq's."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Optional

from fairseq import utils

from fairseq_ctxgates.errors import UserError


def register_models(user_dir: Optional[str] = None) -> None:
    """Register with fairseq the models of ``--user-dir``, then those of this package.

    Raises:
        UserError: the folder does not exist or cannot be imported.
    """
    package = Path(__file__).resolve().parent
    if user_dir is not None and Path(user_dir).resolve() != package:
        try:
            utils.import_user_module(argparse.Namespace(user_dir=user_dir))
        except FileNotFoundError as error:
            raise UserError(f"--user-dir {user_dir} not found: give the folder that fairseq-train was given") from error
        except ImportError as error:
            raise UserError(f"--user-dir {user_dir} cannot be imported: {error}") from error
    from fairseq_ctxgates import models, tasks  # noqa: F401  they register what a checkpoint may name
