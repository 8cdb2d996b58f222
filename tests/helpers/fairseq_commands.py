"""fairseq's commands on tiny corpora, run in this process, which saves the seconds that each spends on imports."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple
from unittest import mock

import numpy as np
import pytest
import sacrebleu
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from torch import Tensor

import fairseq_ctxgates
from fairseq_ctxgates.context_gates.gate_labels import IGNORE
from fairseq_ctxgates.data.data_directory import Split, find_splits, fingerprint
from fairseq_ctxgates.data.side_stream_files import write_side_stream
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.relations.stream import Relations
from fairseq_ctxgates.tasks.context_translation import ContextTranslationConfig, ContextTranslationTask

USER_DIR = str(Path(fairseq_ctxgates.__file__).parent)
TASK = ("--user-dir", USER_DIR, "--task", "context_translation", "--source-lang", "de", "--target-lang", "en")
# Small enough for seconds, and the same on every run.
TRAINING = (
    *("--optimizer", "adam", "--lr", "0.005", "--clip-norm", "1.0", "--dropout", "0.1", "--seed", "1", "--cpu"),
    *("--batch-size", "16", "--num-workers", "0", "--log-format", "json", "--log-interval", "1"),
)
GATED = (
    *("--arch", "rcg_transformer_tiny", "--criterion", "gate_regularized_cross_entropy"),
    *("--load-gate-labels", "--label-smoothing", "0.1"),
)
SMOOTHED = ("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1")
PLAIN = ("--arch", "transformer_tiny", *SMOOTHED)
EVAL_BLEU = ("--eval-bleu", "--eval-bleu-args", '{"beam": 1, "max_len_b": 12}', "--eval-bleu-detok", "space")
SEARCH = ("--beam", "2", "--cpu", "--num-workers", "0", "--max-len-b", "12")
DECODING = (*SEARCH, "--batch-size", "8")
WORDS = {"de": [f"q{number}" for number in range(20)], "en": [f"z{number}" for number in range(20)]}


def make_pairs(number: int, seed: int) -> List[Tuple[str, str]]:
    """Sentence pairs of one to eight words, the target the source reversed, word by word."""
    rng = random.Random(seed)
    pairs = []
    for _ in range(number):
        words = [rng.randrange(20) for _ in range(rng.randint(1, 8))]
        target = [WORDS["en"][word] for word in reversed(words)]
        pairs.append((" ".join(WORDS["de"][word] for word in words), " ".join(target)))
    return pairs


def labels_of(tokens: Any) -> np.ndarray:
    """Labels that tell which token they belong to: its id modulo 2, IGNORE for special symbols (padding, eos, ...)."""
    return np.where(np.asarray(tokens) < 4, IGNORE, np.asarray(tokens) % 2)


def write_gate_labels(
    data: Path, splits: Sequence[str] = ("train", "valid"), langs: Tuple[str, str] = ("de", "en")
) -> None:
    """Write the stream of gate labels of each split: :func:`labels_of` its target tokens."""
    for split in find_splits(data, *langs):
        if split.name in splits:
            labels = (labels_of(row) for row in split.load_language(split.target_lang))
            write_side_stream(split.stream_prefix("gate"), np.uint8, {"fingerprint": fingerprint(split)}, labels)


def write_relations(data: Path, split_name: str, rows: Sequence[Any], langs: Tuple[str, str] = ("de", "en")) -> None:
    """Write the stream of relations of a split, given the row of each sentence."""
    split = Split(data, split_name, *langs)
    metadata = {"fingerprint": fingerprint(split, Relations.languages)}
    write_side_stream(split.stream_prefix(Relations.name), np.int32, metadata, rows)


def setup_task(data: Any, **options: Any) -> Any:
    """The task for training from German to English with gate labels and these options."""
    config = ContextTranslationConfig(data=str(data), source_lang="de", target_lang="en", load_gate_labels=True)
    elsewhere = {
        "train_subset": "train",
        "valid_subset": "valid",
        "disable_validation": False,
        "dataset_impl": "mmap",
        "required_seq_len_multiple": 1,
        "model_overrides": "{}",
        "seed": 1,
    }
    for name, value in {**elsewhere, **options}.items():
        assert hasattr(config, name)
        setattr(config, name, value)
    return ContextTranslationTask.setup_task(config)


def run(command: str, *arguments: Any) -> str:
    """Run a fairseq command (``train``, ``generate``, ...) and return all it printed and logged."""
    # What fairseq keeps from one run to the next in a process, as the best loss so far.
    checkpoint_utils.save_checkpoint.__dict__.clear()
    root, output = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    module = importlib.import_module(f"fairseq_cli.{command}")
    with contextlib.redirect_stdout(output), mock.patch.object(
        sys, "argv", [f"fairseq-{command}", *map(str, arguments)]
    ):
        root.handlers = [logging.StreamHandler(output)]
        root.setLevel(logging.INFO)
        try:
            module.cli_main()
        finally:
            root.handlers, root.level = handlers, level
    return output.getvalue()


def train(data: Path, save_dir: Path, *arguments: Any) -> str:
    """Run fairseq-train with the options that every tiny model shares."""
    return run("train", data, *TASK, *TRAINING, "--save-dir", save_dir, *arguments)


def train_in_two_processes(python: str, data: Path, save_dir: Path, *arguments: Any) -> str:
    """As :func:`train`, in two processes that work together, which share a CPU; the log of the first."""
    save_dir.mkdir(exist_ok=True)
    command = [python, "-m", "fairseq_cli.train", data, *TASK, *TRAINING, "--save-dir", save_dir, *arguments]
    command += ["--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp", "--device-id", 0]
    command += ["--distributed-world-size", 2, "--distributed-init-method", f"file://{save_dir}/rendezvous"]
    processes = [
        subprocess.Popen(
            [*map(str, command), "--distributed-no-spawn", "--distributed-rank", rank],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=save_dir,
        )
        for rank in ("0", "1")
    ]
    try:
        outputs = [process.communicate(timeout=400)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    return outputs[0]


def logged(output: str, tag: str = "train_inner") -> List[Dict[str, Any]]:
    """The entries of a JSON log that have a tag's meters."""
    lines = re.findall(r"^(?:.* \| )?(\{\"\w+\": .*\})$", output, flags=re.MULTILINE)
    marks = {"train_inner": "loss", "train": "train_loss", "valid": "valid_loss"}
    return [entry for entry in map(json.loads, lines) if marks[tag] in entry]


def train_losses(log: str) -> List[float]:
    """The training loss of each epoch."""
    return [float(entry["train_loss"]) for entry in logged(log, "train")]


def new_parameters(log: str) -> Tuple[int, int]:
    """How many parameters a warm start did not find in its checkpoint, and how many of these started as copies."""
    (found,) = re.findall(r"(\d+) of the mechanisms' own are new \((\d+) of them", log)
    return int(found[0]), int(found[1])


class Hypothesis(NamedTuple):
    """A line of fairseq-generate: the score, log2 P for each token, and the words."""

    score: float
    text: str


def hypotheses(output: str) -> Dict[int, Hypothesis]:
    """The translations in the output of fairseq-generate or fairseq-interactive, by the row of their sentence."""
    found = {}
    for line in output.splitlines():
        if line.startswith("H-"):
            number, score, *text = line.split("\t")
            found[int(number[2:])] = Hypothesis(float(score), " ".join(text))
    return found


def printed_alignments(output: str) -> Dict[int, List[Tuple[int, int]]]:
    """What ``--print-alignment`` printed: source and target word of each pair, by the row of the sentence."""
    found = {}
    for row, text in re.findall(r"^A-(\d+)\t(.*)$", output, flags=re.MULTILINE):
        found[int(row)] = [(int(source), int(target)) for source, target in re.findall(r"(\d+)-(\d+)", text)]
    return found


def generate(data: Path, checkpoint: Any, *arguments: Any) -> Dict[int, Hypothesis]:
    """Run fairseq-generate on the test split."""
    return hypotheses(run("generate", data, *TASK, "--path", checkpoint, *DECODING, *arguments))


def validate(data: Path, checkpoint: Any, *arguments: Any) -> Dict[str, Any]:
    """Run fairseq-validate on the valid split and return the meters."""
    options = ("--path", checkpoint, "--batch-size", "16", "--cpu", "--num-workers", "0", "--log-format", "json")
    (meters,) = logged(run("validate", data, *TASK, *options, *arguments), "valid")
    return meters


def interactive(data: Path, checkpoint: Path, lines: Sequence[str], folder: Path, *options: Any) -> List[Hypothesis]:
    """Run fairseq-interactive and return the translations of the lines, in their order."""
    text = folder / "input"
    text.write_text("".join(f"{line}\n" for line in lines))
    found = hypotheses(run("interactive", data, *TASK, "--path", checkpoint, "--input", text, *options))
    assert sorted(found) == list(range(len(lines)))
    return [found[number] for number in range(len(lines))]


def check_same_translations(found: Dict[int, Hypothesis], expected: Dict[int, Hypothesis]) -> None:
    """The same sentences, words and, but for the last bits, scores."""
    assert found.keys() == expected.keys()
    for number, hypothesis in expected.items():
        assert found[number].text == hypothesis.text
        assert abs(found[number].score - hypothesis.score) <= 1e-4


def parameters(checkpoint: Path) -> Dict[str, Tensor]:
    """A checkpoint's parameters, without the buffers, which fairseq 0.12.2 leaves uninitialized."""
    state = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))["model"]
    return {name: value for name, value in state.items() if not name.endswith(("_float_tensor", "version"))}


def check_same_parameters(found: Dict[str, Tensor], expected: Dict[str, Tensor], tolerance: float = 0.0) -> None:
    """Parameters by name, each component equal but for the tolerance."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=0, atol=tolerance), name


def check_checkpoint_activations(data: Path, folder: Path, *options: Any) -> None:
    """Training with --checkpoint-activations is the same as without. By gradient descent: Adam makes a step of full
    length of a gradient that is 0 but for rounding."""
    descent = ("--optimizer", "sgd", "--lr", "0.1", "--clip-norm", 0, "--dropout", 0, "--max-update", 2)
    weights = []
    for name, extra in (("without", ()), ("with", ("--checkpoint-activations",))):
        train(data, folder / name, *options, *extra, *descent)
        weights.append(parameters(folder / name / "checkpoint_last.pt"))
    check_same_parameters(weights[1], weights[0], 1e-6)


_weights_without: Dict[Any, Dict[str, Tensor]] = {}  # of the models of check_options_train


def check_options_train(data: Path, folder: Path, model: Sequence[Any], options: Sequence[Any]) -> None:
    """With these options the loss falls from the first epoch to the second, and the parameters become others than
    without them; ``--eval-bleu`` logs BLEU instead."""
    fixed = ("--dropout", 0, "--max-epoch", 2)
    log = train(data, folder / "with", *model, *options, *fixed)
    losses = train_losses(log)
    assert losses[1] < losses[0]
    if "--eval-bleu" in options:
        check_logged_bleu(data, folder / "with" / "checkpoint_last.pt", log)
        return
    if (data, *model) not in _weights_without:
        train(data, folder / "without", *model, *fixed)
        _weights_without[(data, *model)] = parameters(folder / "without" / "checkpoint_last.pt")
    without, found = _weights_without[(data, *model)], parameters(folder / "with" / "checkpoint_last.pt")
    assert found.keys() != without.keys() or any(not torch.equal(found[name].float(), without[name]) for name in found)


def check_logged_bleu(data: Path, checkpoint: Path, log: str) -> None:
    """The BLEU that ``EVAL_BLEU`` logged last is that of what fairseq-generate makes of the valid split."""
    found = generate(data, checkpoint, "--gen-subset", "valid", "--beam", "1")
    dictionary = Dictionary.load(str(data / "dict.en.txt"))
    references = [dictionary.string(row) for row in Split(data, "valid", "de", "en").load_language("en")]
    bleu = sacrebleu.corpus_bleu([found[number].text for number in sorted(found)], [references])
    assert float(logged(log, "valid")[-1]["valid_bleu"]) == pytest.approx(bleu.score, abs=0.01)


def check_padding_side_changes_nothing(data: Path, folder: Path, *options: Any) -> None:
    """Sources padded on the left and on the right give the same validation loss."""
    scores = []
    for side, option in (("left", ()), ("right", ("--left-pad-source",))):  # which turns it off
        log = train(data, folder / side, *options, *option, "--dropout", 0, "--max-epoch", 1)
        scores.append(float(logged(log, "valid")[-1]["valid_loss"]))
    assert scores[0] == pytest.approx(scores[1], abs=2e-3)


def check_training_is_refused(
    data: Path, folder: Path, options: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """fairseq-train stops with this message: an error of ours, or of the option parser."""
    with pytest.raises((UserError, SystemExit)) as error:
        train(data, folder / "models", *options)
    assert re.search(message, str(error.value) + capsys.readouterr().err)


def check_batches_change_nothing(
    data: Path, checkpoint: Path, size: Sequence[str], expected: Dict[int, Hypothesis]
) -> None:
    """Batches of this size, an option of fairseq, give the same translations of the test split."""
    output = run("generate", data, *TASK, "--path", checkpoint, *SEARCH, *size)
    check_same_translations(hypotheses(output), expected)


def check_stream_is_loaded_without_being_told(
    data: Path, checkpoint: Path, log: str, stream: str, command: str, folder: Path
) -> None:
    """fairseq-validate measures the last loss of training's log; without the stream it and fairseq-generate stop, and
    name the ctxgates command that makes it. The folder is for a copy of the data."""
    last = logged(log, "valid")[-1]
    assert float(validate(data, checkpoint)["valid_loss"]) == pytest.approx(float(last["valid_loss"]), abs=2e-3)
    without = Path(shutil.copytree(data, folder / "data"))
    for path in without.glob(f"*.{stream}.*"):
        path.unlink()
    for tool in (generate, validate):
        with pytest.raises(UserError, match=f"{stream}.de-en.idx not found; run: ctxgates {command}"):
            tool(without, checkpoint)


def check_ensemble_scores(found: Dict[int, Hypothesis], single: Sequence[Dict[int, Hypothesis]]) -> None:
    """An ensemble's scores of the references, beside those of each of its models. A word's probability is the mean of
    theirs, so its logarithm is no less than the mean of their logarithms."""
    assert all(scored.keys() == found.keys() for scored in single)
    for number, hypothesis in found.items():
        assert sum(scored[number].score for scored in single) / len(single) - 1e-4 <= hypothesis.score
    assert len(differ(found, single[0])) > len(found) / 2


def differ(found: Dict[int, Hypothesis], expected: Dict[int, Hypothesis]) -> List[int]:
    """The sentences whose scores are clearly not the same."""
    return [number for number in expected if abs(found[number].score - expected[number].score) > 1e-3]
