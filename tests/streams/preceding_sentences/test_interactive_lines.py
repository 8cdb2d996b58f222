"""fairseq-interactive: the line before each."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any, Dict, List

import pytest

from tests.helpers.preceding_sentences import LINES, LINES_BEFORE, check, interact, make_context_task


@pytest.mark.parametrize("buffer_size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("limit", [{}, {"max_sentences": 1}, {"max_sentences": None, "max_tokens": 20}], ids=str)
def test_lines_of_interactive(data: Path, buffer_size: int, limit: Dict[str, Any]) -> None:
    """Each line is given the one before it, also over the border of a buffer; the line after an empty one, none."""
    task = make_context_task(data)
    found = list(interact(task, LINES, buffer_size, **limit))
    assert check(task, found, LINES, LINES_BEFORE) == list(range(len(LINES)))


@pytest.mark.parametrize("buffer_size", [1, 3])
def test_a_line_of_interactive_that_is_too_long(data: Path, buffer_size: int) -> None:
    """--skip-invalid-size-inputs-valid-test leaves it out, and it is still the predecessor of the next."""
    task = make_context_task(data)
    found = list(interact(task, LINES, buffer_size, max_positions=(5, 5), ignore_invalid_inputs=True))
    assert check(task, found, LINES, LINES_BEFORE) == [number for number in range(len(LINES)) if number != 10]


@pytest.mark.slow
def test_a_thousand_buffers_leave_nothing_behind(data: Path) -> None:
    task = make_context_task(data)
    datasets: List[Any] = []
    build = task.build_dataset_for_inference

    def build_dataset_for_inference(*args: Any, **kwargs: Any) -> Any:
        dataset = build(*args, **kwargs)
        datasets.append(weakref.ref(dataset))
        return dataset

    task.build_dataset_for_inference = build_dataset_for_inference
    found = sum(1 for _ in interact(task, [f"0 {number % 10}" for number in range(1000)], 1))
    assert found == len(datasets) == 1000
    gc.collect()
    assert len(task.dataset_to_epoch_iter) == 0
    assert sum(dataset() is not None for dataset in datasets) <= 1, "the last buffer, at most"
