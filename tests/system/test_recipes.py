"""Every fairseq-train command with our user dir in the examples and every YAML file names options that exist."""

import re
import shlex
from pathlib import Path
from typing import Iterator, List, Tuple

import pytest
from fairseq import options

import fairseq_ctxgates.models
import fairseq_ctxgates.tasks  # noqa: F401

ROOT = Path(__file__).parent.parent.parent
USER_DIR_TEXT = '"$(ctxgates user-dir)"'
USER_DIR = str(ROOT / "fairseq_ctxgates")


def training_commands() -> Iterator[Tuple[str, List[str]]]:
    for path in sorted([ROOT / "README.md", *(ROOT / "examples").glob("*/README.md")]):
        for block in re.findall(r"```bash\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith("fairseq-train ") and USER_DIR_TEXT in line:
                    yield path.parent.name, shlex.split(line.replace(USER_DIR_TEXT, USER_DIR))[1:]


COMMANDS = list(training_commands())


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 4


@pytest.mark.parametrize("arguments", [command for _, command in COMMANDS])
def test_every_option_is_known_and_reaches_the_model(arguments: List[str]) -> None:
    args = options.parse_args_and_arch(options.get_training_parser(), arguments)
    assert args.task in ("context_translation", "translation")
    if args.arch.startswith("rcg_"):
        assert args.criterion == "gate_regularized_cross_entropy"
