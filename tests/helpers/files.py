"""What is in a folder, to compare before and after."""

from __future__ import annotations

from pathlib import Path
from typing import Dict


def contents(folder: Path) -> Dict[str, bytes]:
    """All files of a folder and its subfolders, the latter with a slash at the end; but for Python's bytecode, which it
    writes beside a module that is imported."""
    return {
        f"{path.relative_to(folder)}{'/' if path.is_dir() else ''}": b"" if path.is_dir() else path.read_bytes()
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    }


def files_of(folder: Path) -> Dict[str, bytes]:
    """The files of a folder, without its subfolders, in which a stopped run may have left what another goes on with."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
