"""A sweep over a tiny corpus: real trainings and translations, in processes of their own."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any, List, Sequence

import pytest
import sacrebleu

from fairseq_ctxgates import analysis
from fairseq_ctxgates.analysis.compare import Score, Scores
from fairseq_ctxgates.analysis.sweep import runs, sweep_figure
from fairseq_ctxgates.analysis.sweep_runs import Run, digests, fairseq, write_provenance
from fairseq_ctxgates.analysis.systems import read_translations
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.locks import exclusive
from tests.helpers import fairseq_commands as commands
from tests.helpers.corpus import binarize
from warm_python import WarmPython

TRAIN = (*commands.TRAINING, *commands.GATED, "--max-update", "2", "--no-epoch-checkpoints")
TEST = commands.make_pairs(8, seed=4)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pairs = {"train": commands.make_pairs(32, seed=1), "valid": commands.make_pairs(8, seed=3), "test": TEST}
    data = binarize(tmp_path_factory.mktemp("sweep") / "data-bin", dict(pairs), "de", "en")
    commands.write_gate_labels(data)
    (data / "test.en").write_text("".join(f"{target}\n" for _, target in TEST))
    return data


def sweep(data: Path, save_dir: Path, *options: Any, train: Any = TRAIN) -> Any:
    """Run the command and return its JSON file."""
    report = save_dir.parent / "report.json"
    analysis.main(
        [
            *map(str, ["sweep", data, "--save-dir", save_dir, "--ref", data / "test.en", "--tokenize", "none"]),
            *(["--train", shlex.join(train)] if train else []),
            *("--gen", shlex.join(commands.DECODING), "--resamples", "20", "--json", str(report), *map(str, options)),
        ]
    )
    return json.loads(report.read_text(encoding="utf-8"))


@pytest.fixture
def _starts_fast(warm_commands: WarmPython, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings start without importing fairseq. That they end with the sweep is tested in tests/reliability."""
    monkeypatch.setattr(
        "fairseq_ctxgates.analysis.sweep_runs.ending_with_parent", lambda command: [warm_commands.python, *command[1:]]
    )


@pytest.mark.slow
@pytest.mark.usefixtures("_starts_fast")
def test_trains_translates_and_compares_what_is_not_there_yet(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["--option", "regularized-layers", "--values", "2", "--baseline", "--gate-lambda 0"]
    files = ["--csv", tmp_path / "table.csv", "--figure", tmp_path / "sweep.png"]
    report = sweep(data, tmp_path / "runs", *settings, *files)
    assert [system["system"] for system in report["systems"]] == ["baseline", "2"]
    for system, folder in zip(report["systems"], ("baseline", "regularized-layers=2")):
        translations = read_translations(tmp_path / "runs" / folder / "test.out")
        expected = sacrebleu.corpus_bleu(translations, [[target for _, target in TEST]], tokenize="none").score
        assert system["BLEU"]["score"] == pytest.approx(expected)
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "table.csv").read_text(encoding="utf-8").startswith("--regularized-layers,BLEU,")
    assert capsys.readouterr().out.count("training ") == 2
    log = (tmp_path / "runs" / "regularized-layers=2" / "train.log").read_text(encoding="utf-8")
    assert "'regularized_layers': '2'" in log

    # Again: nothing is trained or translated. Without --train: taken as trained.
    for options in (TRAIN, None):
        assert sweep(data, tmp_path / "runs", *settings, train=options)["systems"] == report["systems"]
        shown = capsys.readouterr().out
        assert "training " not in shown and "translating " not in shown
    # With other options what is there would not be what was asked for.
    with pytest.raises(
        UserError, match=r"baseline holds .* \(there: without these; here: --max-epoch 9\): leave --train"
    ):
        sweep(data, tmp_path / "runs", *settings, train=(*TRAIN, "--max-epoch", "9"))

    # After everything has moved: the same.
    for path in (data, tmp_path / "runs"):
        shutil.copytree(path, tmp_path / "moved" / path.name, copy_function=shutil.copy2)
    moved = sweep(tmp_path / "moved" / data.name, tmp_path / "moved" / "runs", *settings)
    assert moved["systems"] == report["systems"]
    shown = capsys.readouterr().out
    assert "training " not in shown and "translating " not in shown


@pytest.mark.slow
@pytest.mark.usefixtures("_starts_fast")
def test_a_training_that_fails_shows_the_end_of_its_log(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"(?s)failed \(status \d+\).*gate-lambda=x/train.log:\n.*invalid float value"):
        sweep(data, tmp_path / "runs", "--option", "gate-lambda", "--values", "x")


@pytest.mark.process
def test_the_log_is_kept_apart_from_the_translations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fairseq-generate writes the one at once and the other when a buffer is full, perhaps in the middle of a line."""
    command = [sys.executable, "-c", "import sys; print('H-0'); print('INFO', file=sys.stderr)"]
    monkeypatch.setattr("fairseq_ctxgates.analysis.sweep_runs.ending_with_parent", lambda _: command)
    fairseq(["generate"], tmp_path / "test.out", tmp_path / "test.log")
    assert (tmp_path / "test.out").read_text() == "H-0\n"
    assert (tmp_path / "test.log").read_text() == "INFO\n"


def test_what_another_model_or_other_options_translated_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that was trained on has the same path."""
    (tmp_path / "model.pt").touch()
    made: List[Sequence[str]] = []
    data_digests = {"data/test": "1"}

    def generate(command: Sequence[str], output: Path, log: Path) -> None:
        made.append(command)
        with open(output, "a") as file:
            file.write(f"H-0\t-1.0\tcall {len(made)}\n")

    def translations(*options: str) -> List[str]:
        return Run("1", [], tmp_path).translate("data", "test", options, "model.pt", data_digests)

    monkeypatch.setattr("fairseq_ctxgates.analysis.sweep_runs.fairseq", generate)
    assert translations() == translations() == ["call 1"]
    os.utime(tmp_path / "model.pt", (1, 1))
    assert translations() == ["call 2"]
    assert translations("--beam", "1") == ["call 3"]
    data_digests["data/test.gate.de-en.json"] = "1"  # a stream that was added since
    assert translations("--beam", "1") == ["call 3"]
    data_digests["data/test"] = "2"
    assert translations("--beam", "1") == ["call 4"]


def test_a_model_of_other_data_is_refused(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command would take the model as trained."""
    run = Run("1", [], tmp_path)
    (tmp_path / "checkpoint_best.pt").touch()
    before = digests([data], ("train", "valid"), ("de", "en"))
    assert set(before) == {
        *(f"1/{split}" for split in ("train", "valid")),
        *(f"1/{split}.gate.de-en.json" for split in ("train", "valid")),
    }
    write_provenance(tmp_path / "train.log.json", {"data": before})
    for name in before:
        with pytest.raises(UserError, match=f"{tmp_path} holds a model that was trained on other data than data-bin"):
            run.train("data-bin", [], "checkpoint_best.pt", {**before, name: "other"})
    write_provenance(tmp_path / "train.log.json", {"options": {}, "done": True})
    run.train("data-bin", [], "checkpoint_best.pt", before)  # has been trained
    monkeypatch.setattr("fairseq_ctxgates.analysis.sweep_runs.fairseq", lambda *_: None)
    with pytest.raises(UserError, match=f"{tmp_path} holds no lost.pt, and its training is done: check --checkpoint"):
        run.train("data-bin", [], "lost.pt", before)
    write_provenance(tmp_path / "train.log.json", {"options": {}, "done": False})
    with pytest.raises(UserError, match="training did not write .*lost.pt: check --checkpoint"):  # it went on
        run.train("data-bin", [], "lost.pt", before)
    write_provenance(tmp_path / "train.log.json", {"data": before})
    with pytest.raises(UserError, match="this command did not train: leave --train out"):
        run.train("data-bin", [], "checkpoint_best.pt", before)


def test_a_model_of_other_options_is_refused(tmp_path: Path) -> None:
    """However they are written; only those that differ are named."""
    run = Run("1", ["--gate-lambda", "1"], tmp_path)
    (tmp_path / "checkpoint_last.pt").touch()
    options = {"--lr": "2e-3", "--adam-betas": "'(0.9, 0.98)'", "--fp16": "", "--gate-lambda": "1"}
    for is_done, remedy in ((True, "leave --train out"), (False, "its training was broken off: give the same options")):
        write_provenance(tmp_path / "train.log.json", {"options": options, "done": is_done})
        with pytest.raises(UserError, match=rf"\(there: --lr 2e-3 --fp16; here: --share --lr -1\): {remedy}"):
            run.train("x", ["--share", "--lr", "3", "--adam-betas=(0.9, 0.98)", "--lr", "-1"], "checkpoint_best.pt", {})


def test_a_training_that_was_broken_off_is_not_taken_as_it_is(tmp_path: Path) -> None:
    run = Run("1", [], tmp_path)
    run.check_trained()  # trained by something else
    for is_done in (True, False):
        write_provenance(tmp_path / "train.log.json", {"done": is_done})
        if is_done:
            run.check_trained()
    with pytest.raises(UserError, match=f"{tmp_path} holds a model whose training was broken off: give --train again"):
        run.check_trained()


def test_runs_have_folders_of_their_own() -> None:
    found = runs("gate-lambda", ["0", "1,3-5"], Path("x"), "--gate-lambda 0 --seed 2")
    assert [(run.name, list(run.options), str(run.folder)) for run in found] == [
        ("baseline", ["--gate-lambda", "0", "--seed", "2"], "x/baseline"),
        ("0", ["--gate-lambda", "0"], "x/gate-lambda=0"),
        ("1,3-5", ["--gate-lambda", "1,3-5"], "x/gate-lambda=1,3-5"),
    ]


@pytest.mark.parametrize(
    ("names", "places", "scores"),
    [
        (["0", "0.5", "2"], [0, 0.5, 2], [31, 32, 33]),
        (["1", "0", "1.5"], [0, 1, 1.5], [32, 31, 33]),  # the first one is what others are tested against
        (["all", "1", "2"], [0, 1, 2], [31, 32, 33]),
    ],
)
def test_numbers_are_drawn_to_scale_and_other_settings_side_by_side(
    names: list[str], places: list[float], scores: list[float]
) -> None:
    bleu = [Score(30.0 + number, 30.25 + number, 1.0, None) for number in range(4)]
    figure: Any = sweep_figure(Scores(["baseline", *names], {"BLEU": bleu}, {"BLEU": ""}), "gate-lambda", "about")
    (axes,) = figure.axes
    dashed = next(line for line in axes.lines if line.get_linestyle() == "--")
    points = next(line for line in axes.lines if line.get_marker() == "o")
    assert list(points.get_xdata()) == places
    assert list(points.get_ydata()) == scores
    (bars,) = (lines.get_segments() for lines in axes.collections)
    assert [bar[:, 1].tolist() for bar in bars] == [[score - 0.75, score + 1.25] for score in scores]
    assert set(dashed.get_ydata()) == {30}
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["baseline", "--gate-lambda"]


def test_a_second_sweep_on_the_same_folder_is_refused(data: Path, tmp_path: Path) -> None:
    """It would train into the folder where the first still trains."""
    folder = tmp_path / "dropout=0.1"
    folder.mkdir()
    with exclusive(folder / ".lock", "another sweep is writing"):
        with pytest.raises(UserError, match=rf"another sweep is writing \(process {os.getpid()} on "):
            sweep(data, tmp_path, "--option", "dropout", "--values", "0.1")
    assert not list(folder.iterdir())
