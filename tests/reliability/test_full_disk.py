"""A disk that is full ends a command with one line that names a file. The limit of a file's size stands in for it."""

from __future__ import annotations

import io
import re
import resource
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Sequence, Tuple

import pytest
from fairseq import checkpoint_utils

from fairseq_ctxgates.commands import gate_labels, preceding_sentences, relations
from fairseq_ctxgates.errors import UserError
from tests.helpers.corpus import binarize

pytestmark = pytest.mark.usefixtures("extractor")

PAIRS = [(f"farmer {number} sells apples .", f"bauer {number} verkauft .") for number in range(300)]
COMMANDS: Dict[str, Tuple[Callable[[List[str]], None], Sequence[str]]] = {
    "gate-labels": (gate_labels.main, ()),
    "preceding-sentences": (preceding_sentences.main, ("--one-document",)),
    "relations": (relations.main, ()),
}
LIMITS = (0, 10, 500, 1500)  # bytes, all less than the largest file


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Without Python's caches, of which it would keep what fits."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    writes_no_caches, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        sys.dont_write_bytecode = writes_no_caches


@pytest.mark.parametrize("command", COMMANDS)
def test_the_message_names_a_file(tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """``capsys``, because pytest would write what is printed to a file."""
    data = binarize(tmp_path / "data", {"train": PAIRS}, "de", "en")
    main, options = COMMANDS[command]
    arguments = [str(data), "-s", "de", "-t", "en", *options]
    before = {path.name for path in data.iterdir()}
    for limit in LIMITS:
        with files_of_at_most(limit), pytest.raises(UserError) as error:
            main(arguments)
        message = rf"{data}/\S+: File too large; incomplete output files were removed"
        assert re.fullmatch(message, str(error.value)), error.value
        assert {path.name for path in data.iterdir() if not path.is_dir()} == before
    main(arguments)
    assert len(list(data.glob("train.*.json"))) >= 1


def test_the_last_checkpoint_is_left_as_it_was(tmp_path: Path) -> None:
    """Until the copy that fairseq makes of a checkpoint is complete."""
    best, last = tmp_path / "checkpoint_best.pt", tmp_path / "checkpoint_last.pt"
    best.write_bytes(b"new" * 99)
    last.write_bytes(b"old")
    with files_of_at_most(50), pytest.raises(OSError, match=f"File too large.*{last}"):
        checkpoint_utils.PathManager.copy(str(best), str(last), overwrite=True)
    assert last.read_bytes() == b"old"
    assert checkpoint_utils.PathManager.copy(str(best), str(last), overwrite=True)
    assert last.read_bytes() == best.read_bytes()
    assert sorted(tmp_path.iterdir()) == [best, last]


class Closed(io.StringIO):
    """Standard output whose reader has ended."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_streams_are_there_before_the_report(tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Printing it may fail, without a message that the streams were removed."""
    data = binarize(tmp_path / "data", {"train": PAIRS[:10]}, "de", "en")
    main, options = COMMANDS[command]
    with monkeypatch.context() as patch, pytest.raises(BrokenPipeError):
        patch.setattr(sys, "stdout", Closed())
        main([str(data), "-s", "de", "-t", "en", *options])
    assert len(list(data.glob("train.*.json"))) == 1


def test_the_message_names_a_stream_or_the_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of those that are written side by side, the one that failed."""
    data = binarize(tmp_path / "data", {"train": PAIRS}, "de", "en")
    arguments = [str(data), "-s", "de", "-t", "en", "--dump"]
    with pytest.raises(UserError, match="^/dev/full: No space left on device; incomplete output files were removed$"):
        relations.main([*arguments, "/dev/full"])
    with files_of_at_most(20 * 300), pytest.raises(UserError, match=f"^{tmp_path}/tuples.jsonl: File too large; "):
        relations.main([*arguments, str(tmp_path / "tuples.jsonl")])
    with files_of_at_most(4 * 300), pytest.raises(UserError, match=f"^{data}/train.relation.de-en: File too large; "):
        relations.main([*arguments, "/dev/null"])
