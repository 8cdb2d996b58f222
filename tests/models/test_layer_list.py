from __future__ import annotations

import pytest

from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.layer_list import parse_layers


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("all", (1, 2, 3, 4, 5, 6)),
        ("6", (6,)),
        ("1,3-5", (1, 3, 4, 5)),
        ("5,1-2", (1, 2, 5)),
        ("2-4,3,4-5", (2, 3, 4, 5)),
        ("3-3", (3,)),
        (" 1, 3 - 4", (1, 3, 4)),
    ],
)
def test_a_list_of_layers_is_read(text: str, layers: tuple[int, ...]) -> None:
    assert parse_layers(text, 6, "--regularized-layers") == layers


@pytest.mark.parametrize(
    "text", ["9", "0", "7", "5-7", "3-1", "", "x", "1,,2", "1;2", "-1", "1-", "1-2-3", "1.5", "ALL"]
)
def test_other_lists_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--some-layers"):
        parse_layers(text, 6, "--some-layers")
