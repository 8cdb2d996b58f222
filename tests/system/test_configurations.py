"""The configurations that the tests of fairseq's commands compose faster are fairseq's."""

from __future__ import annotations

import copy
from typing import Any, Callable, Tuple

import pytest
from fairseq import options
from fairseq.dataclass import utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from tests.helpers.configurations import compose, compose_anew
from tests.helpers.fairseq_commands import GATED, PLAIN, SEARCH, TASK, TRAINING


@pytest.mark.parametrize(
    ("get_parser", "command_line"),
    [
        (options.get_training_parser, (*TASK, *TRAINING, *GATED, "--regularized-layers", "1", "--save-dir", "a b='c'")),
        (options.get_training_parser, ("--arch", "transformer", "--lr", "0.1,0.2", "--update-freq", "2", *TASK[:2])),
        (options.get_training_parser, ("--arch", "lstm", *PLAIN[2:], "--restore-file", "{x}[1],2", "--seed", "7")),
        (options.get_generation_parser, (*TASK, *SEARCH, "--path", "a.pt:b=c.pt", "--model-overrides", "{'a': [1]}")),
    ],
)
def test_it_is_fairseqs(
    monkeypatch: pytest.MonkeyPatch, get_parser: Callable[[], Any], command_line: Tuple[str, ...]
) -> None:
    arguments = options.parse_args_and_arch(get_parser(), ["data", *command_line])
    assert utils.compose is compose
    first, again = (convert_namespace_to_omegaconf(copy.copy(arguments)) for _ in range(2))
    monkeypatch.setattr(utils, "compose", compose_anew)
    # As text, because OmegaConf compares no namespaces, which fairseq puts there for options that are no dataclass.
    assert str(first) == str(again) == str(convert_namespace_to_omegaconf(arguments))
    first.common.seed += 1
    assert str(first) != str(again)


def test_a_value_that_does_not_fit_is_refused() -> None:
    arguments = options.parse_args_and_arch(options.get_training_parser(), ["data", "--arch", "transformer"])
    arguments.ddp_backend = "pigeons"
    with pytest.raises(Exception, match="ddp_backend=.?pigeons"):
        convert_namespace_to_omegaconf(arguments)
