"""The files that an analysis is asked to write, and what is in them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any


def output_files(folder: Path, name: str) -> dict[str, Path]:
    """Files of this name for the options that all analyses have."""
    endings = {"json": "json", "csv": "csv", "figure": "png"}
    return {option: folder / f"{name}.{ending}" for option, ending in endings.items()}


def page_content(page: str) -> dict[str, Any]:
    """The data in a page."""
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    found: dict[str, Any] = json.loads(text)
    return found
