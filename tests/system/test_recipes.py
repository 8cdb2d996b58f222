"""Every fairseq-train command with our user dir in the examples and every YAML file names options that exist."""

import re
import shlex
from pathlib import Path
from typing import Iterator, List, Tuple

import pytest
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

import fairseq_ctxgates.models
import fairseq_ctxgates.tasks  # noqa: F401
from fairseq_ctxgates.models.context_model import ContextModel
from tests.helpers.models import make_task

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
    """The model is built, which refuses options that would do nothing, and reads the streams that are loaded for it."""
    args = options.parse_args_and_arch(options.get_training_parser(), arguments)
    assert args.task in ("context_translation", "translation")
    if args.arch.startswith("rcg_"):
        assert args.criterion == "gate_regularized_cross_entropy"
    task = make_task()
    model = task.build_model(convert_namespace_to_omegaconf(args).model, from_checkpoint=True)  # no --warm-start
    loaded = {
        "preceding": getattr(args, "load_preceding_sentences", False),
        "relation": getattr(args, "load_relations", False),
    }
    assert isinstance(model, ContextModel) or args.arch in ("transformer", "transformer_iwslt_de_en")
    assert task.required_streams() == {name for name, is_loaded in loaded.items() if is_loaded}
