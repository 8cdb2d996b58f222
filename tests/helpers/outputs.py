"""The files that an analysis is asked to write."""

from __future__ import annotations

from pathlib import Path


def output_files(folder: Path, name: str) -> dict[str, Path]:
    """Files of this name for the options that all analyses have."""
    endings = {"json": "json", "csv": "csv", "figure": "png"}
    return {option: folder / f"{name}.{ending}" for option, ending in endings.items()}
