"""The experiments: plans are checked before anything runs, their commands name options that exist, and the table has
the numbers of finished seeds only."""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, List, Sequence, Set, Tuple

import numpy as np
import pytest
from sacrebleu.metrics import BLEU

from evidence import dropped_pronouns, run, table
from evidence.commands import CorpusCommands, MoreOptions, PartCommands
from evidence.plan import Corpus, Plan, read_plan
from fairseq_ctxgates.analysis.compare import paired_bootstrap
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.smoothing.context_aware_smoothing import ContextAwareSmoothing
from runner import Record, slug
from tests.helpers.pages import ROOT, record, value_of
from tests.helpers.recipes import check_training, parse
from warm_python import WarmPython

PLANS = sorted((ROOT / "examples" / "evidence" / "plans").glob("*.yaml"))
SMOKE = ROOT / "examples" / "evidence" / "plans" / "smoke.yaml"
ENDINGS = ("de", "en", "fr", "ja", "zh", "docids")

# --- plans ------------------------------------------------------------------------------------------------------------

PLAN = """
options: {size: --encoder-layers 2}
corpora: {toy: {languages: en-de, make: "touch $text", words: 100}}
measures: {gates: {command: "measure $checkpoint", columns: {mean: all.mean}}}
parts:
  first:
    corpus: toy
    budget: --max-epoch 1
    train: ${options.size} --lr 1
    systems:
      plain: {train: --arch transformer}
      gated: {train: --arch rcg_transformer, starts_from: plain, measures: [gates]}
"""


def write_plan(folder: Path, *changes: tuple[str, str]) -> Path:
    text = PLAN
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "plan.yaml").write_text(text)
    return folder / "plan.yaml"


def test_a_plan_is_read_and_changed_by_one_that_includes_it(tmp_path: Path) -> None:
    plan = read_plan(write_plan(tmp_path))
    assert plan.parts["first"].train == "--encoder-layers 2 --lr 1"
    assert plan.parts["first"].rows == ["plain", "gated"] and plan.parts["first"].seeds == [1]
    (tmp_path / "larger.yaml").write_text(
        "include: [plan.yaml]\noptions: {size: --encoder-layers 6}\nparts: {first: {seeds: [1, 2]}}\n"
    )
    larger = read_plan(tmp_path / "larger.yaml")
    assert larger.parts["first"].train == "--encoder-layers 6 --lr 1" and larger.parts["first"].seeds == [1, 2]
    assert list(larger.parts["first"].systems) == ["plain", "gated"]


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("budget:", "bugdet:", r"parts\.first\.bugdet: Extra inputs"),
        ("languages: en-de", "languages: en", r"corpora\.toy\.languages: "),
        ("words: 100", "words: many", r"corpora\.toy\.words: "),
        ("words: 100", "words: 100, bpe: 200", "give one of 'bpe' and 'words'"),
        (", words: 100", "", "give one of 'bpe' and 'words'"),
        ("words: 100", "words: 100, first: 5", "'first', 'held_out' and 'documents' are of 'text'"),
        ("words: 100", "words: 100, documents: true", "'first', 'held_out' and 'documents' are of 'text'"),
        ("words: 100", "words: 100, scoring: --resamples 5", "scoring: unrecognized arguments: --resamples 5"),
        ("words: 100", "words: 100, scoring: --tokenize", "scoring: argument --tokenize: expected one argument"),
        ("[gates]}", "[gates], is_scored: false}", r"systems\.gated: 'variants' and 'measures' are of a system"),
        ("corpus: toy", "corpus: joy", r"parts\.first\.corpus: no corpus 'joy'"),
        ("starts_from: plain", "starts_from: plian", r"systems\.gated\.starts_from: no system 'plian' before it"),
        ("[gates]", "[gtaes]", r"parts\.first\.systems\.gated\.measures: no measure 'gtaes'"),
        ("${options.size}", "${options.sise}", "options.sise"),
        ("plain: {train", "gated!: {train", "starts_from: no system"),
        ("starts_from: plain, ", "variants: {plain!: --beam 1}, ", r"systems: 'plain!' cannot name a folder"),
        ("  first:", "  corpora:", r"parts: 'corpora' cannot name a folder"),
        ("{gates: {command", "{train: {command", r"measures: 'train' cannot name a folder"),
        ("budget:", "seeds: [1, 1]\n    budget:", "give each seed once"),
        ("options: {", "options: [", "plan.yaml"),
        ("options: {size", "include: [plan.yaml]\noptions: {size", "includes itself"),
        ("options: {size", "include: [missing.yaml]\noptions: {size", "missing.yaml: No such file"),
    ],
)
def test_a_plan_with_a_mistake_is_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    path = write_plan(tmp_path, (old, new))
    with pytest.raises(UserError, match=message):
        read_plan(path)


def test_the_pages_example_of_a_plan(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", (PLANS[0].parents[1] / "README.md").read_text(), re.DOTALL)
    (tmp_path / "plan.yaml").write_text(block.replace("[dialogues.yaml]", f"[{PLANS[0].parent / 'dialogues.yaml'}]"))
    plan = read_plan(tmp_path / "plan.yaml")
    assert plan.parts["gates"].seeds == [1, 2, 3] and plan.parts["gates"].budget.endswith("--patience 3")


def test_a_list_is_no_plan(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text("- 1\n")
    with pytest.raises(UserError, match="a plan is a mapping with the keys include, options, corpora, measures, parts"):
        read_plan(tmp_path / "plan.yaml")


@pytest.mark.parametrize(
    "change, arguments, message",
    [
        (
            ("$checkpoint", "$chekpoint"),
            [],
            r"measures\.gates\.command: .*unknown name \('chekpoint'\); known are .corpus, .data,",
        ),
        (('make: "touch $text"', "text: toy"), [], r"toy/train\.en \(or \.gz\) not found: .* by --texts"),
        (("lr 1", "lr 2"), ["--parts", "second"], "has no part 'second'; its parts are first"),
        (("lr 1", "lr 2"), ["--systems", "gates"], "no part has a system 'gates'; the systems are 'plain', 'gated'"),
    ],
)
def test_a_run_with_a_mistake_is_refused_at_once(
    change: tuple[str, str], arguments: List[str], message: str, tmp_path: Path
) -> None:
    directory = tmp_path / "evidence"
    with pytest.raises(UserError, match=message):
        run.main([str(write_plan(tmp_path, change)), "--directory", str(directory), *arguments])
    assert not (directory / "corpora").exists()


def test_corrected_texts_are_other_texts(tmp_path: Path) -> None:
    corpus = Corpus(languages="en-de", text="toy", words=100)
    (tmp_path / "toy").mkdir()

    def inputs() -> str:
        return CorpusCommands("toy", corpus, tmp_path).job.steps[0].inputs

    assert not inputs()  # the texts are not here
    for name in ("train.en", "train.de", "valid.en", "valid.de", "test.en", "test.de.gz"):
        (tmp_path / "toy" / name).write_text("a\n")
    before = inputs()
    assert before == inputs()
    (tmp_path / "toy" / "valid.de").write_text("b\n")
    assert before != inputs()


def test_only_corpora_that_a_part_reads_are_made_ready(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpora = ("words: 100}}", "words: 100}, other: {languages: en-de, text: nowhere, words: 100}}")
    options = ["--directory", str(tmp_path / "evidence"), "--dry-run"]
    run.main([str(write_plan(tmp_path, corpora)), *options])
    assert "corpora/toy" in capsys.readouterr().out


def test_a_chain_of_starts_is_kept_whole() -> None:
    unscored = {"train": "", "is_scored": False}
    systems = {"base": unscored, "mid": {**unscored, "starts_from": "base"}, "top": {"train": "", "starts_from": "mid"}}
    corpora = {"texts": {"languages": "a-b", "text": "t", "words": 5}}
    parts = {"part": {"corpus": "texts", "budget": "--max-epoch 1", "systems": {**systems, "other": {"train": ""}}}}
    plan = Plan.model_validate({"corpora": corpora, "parts": parts})
    assert list(plan.only([], ["top"]).parts["part"].systems) == ["base", "mid", "top"]


def test_seeds_that_were_begun_are_reported(tmp_path: Path) -> None:
    """Those of an earlier ``--seeds``, beside the plan's own."""
    plan = read_plan(SMOKE)
    part = next(iter(plan.parts))
    args = run.get_parser().parse_args([str(SMOKE), "--directory", str(tmp_path)])
    (tmp_path / slug(part) / "seed77").mkdir(parents=True)
    assert run.Experiments(plan, args)._seeds(part) == sorted({*plan.parts[part].seeds, 77})


def test_systems_that_are_named_are_run_with_those_that_they_start_from() -> None:
    plan = read_plan(PLANS[0].parent / "dialogues.yaml")
    chosen = plan.only([], ["gate, 1", "rnnsearch"])
    assert list(chosen.parts) == ["preceding-sentence", "several-sentences"]
    assert list(chosen.parts["preceding-sentence"].systems) == ["start", "rnnsearch"]
    assert list(chosen.parts["several-sentences"].systems) == ["start", "gate, 1"]
    # The others read the models of systems that are left out.
    assert list(chosen.parts["preceding-sentence"].analyses) == ["pronouns", "coherence"]
    assert list(chosen.parts["several-sentences"].analyses) == ["pronouns"]
    assert plan.only(["gates"], []).parts == {"gates": plan.parts["gates"]} and plan.only([], []) == plan


@pytest.mark.process
@pytest.mark.parametrize(
    "target, text",
    [
        ("fr", "L’inspecteur s'assure qu’il n’y a pas d'autres articles aujourd’hui (voir l’annexe 2)."),
        ("de", "Sie sagte: „Das reicht“, und ging (ohne ihn)."),
    ],
)
def test_translations_are_text_again(target: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In tokens of Moses, and out of them, by the commands of a plan."""
    pytest.importorskip("sacremoses")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    commands = CorpusCommands("toy", Corpus(languages=f"en-{target}", text="toy", tokenizer="moses", bpe=10), tmp_path)
    folder = tmp_path / "corpora" / "toy" / "text"
    folder.mkdir(parents=True)
    for split in ("train", "valid", "test"):
        (folder / f"{split}.en").touch()
        (folder / f"{split}.{target}").write_text(f"{text}\n", encoding="utf-8")

    def run_command(command: str) -> None:
        subprocess.run(command, shell=True, check=True, cwd=tmp_path, stderr=subprocess.DEVNULL)

    (tokenizing,) = (step.command for step in commands.job.steps if step.what == "tokenizing")
    run_command(tokenizing)
    tokens = (folder / f"test.tok.{target}").read_text(encoding="utf-8")
    assert tokens.split() != text.split()
    (tmp_path / "generated").write_text(f"S-0\tx\nD-0\t-0.5\t{tokens}", encoding="utf-8")
    run_command(commands.translations("generated", "translated"))
    assert (tmp_path / "translated").read_text(encoding="utf-8") == f"{text}\n"


@pytest.mark.process
def test_translations_are_in_the_order_of_the_text(tmp_path: Path) -> None:
    """fairseq-generate prints those of long sentences first; 10 comes after 9."""
    commands = CorpusCommands("toy", Corpus(languages="en-de", text="toy", words=10), tmp_path)
    numbers = [11, 2, 10, 0, 9, 1, 3, 5, 4, 6, 8, 7]
    lines = (f"S-{number}\tx\nH-{number}\t-0.5\ty\nD-{number}\t-0.5\tline {number}\n" for number in numbers)
    (tmp_path / "generated").write_text("".join(lines))
    subprocess.run(commands.translations("generated", "translated"), shell=True, check=True, cwd=tmp_path)
    assert (tmp_path / "translated").read_text().splitlines() == [f"line {number}" for number in range(12)]


@pytest.mark.process
def test_a_test_set_that_is_held_out_is_not_trained_on(tmp_path: Path) -> None:
    """The last of the first lines, in both languages and in the names of the documents."""
    corpus = Corpus(languages="en-de", text="toy", words=10, documents=True, first=6, held_out=2)
    commands = CorpusCommands("toy", corpus, tmp_path)
    (tmp_path / "toy").mkdir()
    for ending in ("en", "de", "docids"):
        for split, number in (("train", 8), ("valid", 1)):
            text = "".join(f"{split} {line} {ending}\n" for line in range(number))
            (tmp_path / "toy" / f"{split}.{ending}.gz").write_bytes(gzip.compress(text.encode()))
    environment = {**os.environ, "TEXTS": str(tmp_path)}
    subprocess.run(commands.job.steps[0].command, shell=True, check=True, cwd=tmp_path, env=environment)
    folder = tmp_path / "corpora" / "toy" / "text"
    for ending in ("en", "de", "docids"):
        for split, expected in (("train", range(4)), ("test", range(4, 6))):
            lines = (folder / f"{split}.{ending}").read_text().splitlines()
            assert lines == [f"train {line} {ending}" for line in expected]
        assert (folder / f"valid.{ending}").read_text() == f"valid 0 {ending}\n"


def test_plans_with_parts_of_one_name_are_run_apart() -> None:
    folders = {run.directory_of(run.get_parser().parse_args([str(plan)])) for plan in PLANS}
    assert folders == {Path("evidence", plan.stem).resolve() for plan in PLANS}


# --- commands ---------------------------------------------------------------------------------------------------------


def commands_of(plan: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> List[List[str]]:
    """The commands of fairseq and of this package in a plan, on ten lines of text."""
    for corpus in ("documents", "laws", "msctd", "multi30k", "tanaka"):
        (folder / corpus).mkdir()
        for split in ("train", "valid", "test"):
            for ending in ENDINGS:
                (folder / corpus / f"{split}.{ending}").write_text("a line\n" * 10)
    run.main([str(plan), "--texts", str(folder), "--directory", str(folder), "--dry-run"])
    made = folder / "corpora" / "toy" / "text"  # which the plan makes by Python
    made.mkdir(parents=True)
    for split in ("train", "valid", "test"):
        for ending in ("en", "de"):
            (made / f"{split}.{ending}").touch()
    return record(capsys.readouterr().out, folder, silenced=["python"])


# The commands of all plans that were read, and those whose models were built: plans that include others share many.
READ: Set[Tuple[str, ...]] = set()
BUILT: Set[Tuple[str, ...]] = set()
BUDGET = ("--max-epoch", "--max-update", "--patience", "--total-num-update")


def without(options: Sequence[str], words: Sequence[str]) -> Tuple[str, ...]:
    """A command without these options, and without the seed in its files' names."""
    pairs = zip(["", *words], words)
    return tuple(re.sub(r"seed\d+", "", word) for last, word in pairs if not {last, word} & {*options})


@pytest.mark.xdist_group("plans")
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.stem)
def test_the_plans_train_and_translate_their_systems(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = commands_of(plan, tmp_path, capsys)
    for words in commands:
        command, model = without(["--seed"], words), without(["--seed", *BUDGET], words)
        if command not in READ:
            READ.add(command)
            args = parse(words)
            if words[0] == "fairseq-train" and model not in BUILT:
                BUILT.add(model)
                check_training(args)
    parts = read_plan(plan).parts
    trained = [value_of("--save-dir", words) for words in commands if words[0] == "fairseq-train"]
    assert len(trained) == len(set(trained)) == sum(len(part.systems) * len(part.seeds) for part in parts.values())
    translations = sum(words[0] == "fairseq-generate" for words in commands)
    assert translations == sum(len(part.rows) * len(part.seeds) for part in parts.values())
    for words in commands:
        if words[0] == "fairseq-generate":
            assert str(Path(value_of("--path", words)).parent) in trained


def test_each_seed_has_its_own_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each starts from the model of the same seed, and is trained as long as the system says, or else the command line.
    A variant is a translation by the system's model with the variant's options."""
    more = "starts_from: plain, budget: --max-epoch 3, variants: {narrow: --beam 1}"
    plan = write_plan(tmp_path, ("starts_from: plain", more))
    run.main([str(plan), "--directory", str(tmp_path), "--dry-run", "--seeds", "5", "6", "--budget=--max-epoch 2"])
    lines = capsys.readouterr().out.splitlines()
    trainings = [shlex.split(line) for line in lines if line.startswith("fairseq-train ")]
    options = ("--seed", "--save-dir", "--max-epoch")
    found = [[value_of(option, words) for option in options] for words in trainings]
    assert found == [
        [seed, f"first/seed{seed}/{system}", epochs]
        for seed in ("5", "6")
        for system, epochs in (("plain", "2"), ("gated", "3"))
    ]
    starts = [value_of("--warm-start", words) for words in trainings[1::2]]
    assert starts == [f"first/seed{seed}/plain/checkpoint_best.pt" for seed in (5, 6)]
    (narrow,) = (line for line in lines if line.endswith("> first/seed6/narrow/generated.txt"))
    assert "--path first/seed6/gated/checkpoint_best.pt " in narrow and " --beam 1 " in narrow
    (gated,) = (line for line in lines if line.endswith("> first/seed6/gated/generated.txt"))
    assert "--beam" not in gated


def test_tanaka_has_the_slides_systems_and_those_that_add(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (plan,) = (plan for plan in PLANS if plan.stem == "tanaka")
    trainings = [words for words in commands_of(plan, tmp_path, capsys) if words[0] == "fairseq-train"]
    found = {}
    for words in trainings[1:]:
        args = parse(words)
        parts = [part for part in check_training(args).modules() if isinstance(part, ContextAwareSmoothing)]
        chosen = (str(args.smoothing), str(args.smoothing_side), str(args.smoothing_words))
        (adds,) = {part.add for part in parts}
        found[Path(args.save_dir).name] = (*chosen, adds, len(parts))
    for model in ("fcwm", "ccwm"):
        for side, places in (("encoder", 1), ("decoder", 1), ("both", 2)):
            assert found.pop(f"{model}-{side}") == (model, side, "unknown", False, places)
        assert found.pop(f"{model}-all-replace") == (model, "both", "all", False, 2)
        assert found.pop(f"{model}-all-add") == (model, "both", "all", True, 2)
    assert found == {}


def test_pronouns_that_the_source_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [  # document, source, target
        ("0", "他@@ 们 来 了", "they came ."),
        ("0", "走 了 其他", "he left ."),  # 他 is in words that are no pronoun
        ("a", "他 来 了", "he came ."),
        ("a", "走 了", "he left ."),  # the antecedent stands before
        ("a", "她 走 了", "she left ."),  # not left out
        ("a", "好", "it 's good ."),  # another gender stands before
        ("a", "坏", "he said it ."),  # two pronouns
        ("a", "坏", "the un@@ it left ."),  # the end of a word that is none
        ("b", "走 了", "he left ."),  # the first of its dialogue
        ("b", "好", "good ."),
    ]
    (tmp_path / "text").mkdir()
    for split, chosen in (("valid", lines), ("test", [("c", "它", "it"), ("c", "在 这", "here it is")])):
        for name, column in ((f"text/{split}.docids", 0), (f"{split}.bpe.zh", 1), (f"{split}.bpe.en", 2)):
            (tmp_path / name).write_text("".join(f"{line[column]}\n" for line in chosen))
    dropped_pronouns.main([str(tmp_path), str(tmp_path / "sets")])
    assert capsys.readouterr().out == "4 examples, 2 of them with an antecedent in the preceding sentence\n"

    def side(name: str) -> List[str]:
        return (tmp_path / "sets" / name).read_text().splitlines()

    assert side("dropped/reference") == ["he left .", "he left .", "it 's good .", "here it is"]
    assert side("dropped/wrong1") == ["she left .", "she left .", "he 's good .", "here he is"]
    assert side("dropped/wrong2") == ["it left .", "it left .", "she 's good .", "here she is"]
    assert side("antecedent/preceding1") == ["他 来 了", "它"] and side("antecedent/source") == ["走 了", "在 这"]
    assert side("dropped/preceding2") == ["", "", "走 了", ""]
    assert side("dropped/preceding3") == ["", "", "他 来 了", ""]
    assert side("dropped/preceding-target2") == ["", "", "he left .", ""]


# --- the table --------------------------------------------------------------------------------------------------------


def valid_line(updates: int, loss: float, nll: float) -> str:
    entry = {"epoch": 1, "valid_loss": str(loss), "valid_nll_loss": str(nll), "valid_num_updates": str(updates)}
    return f"2026-01-01 | INFO | valid | {json.dumps(entry)}\n"


def test_a_training_is_read_from_its_log(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    log = tmp_path / "a" / "train.log"
    lines = [valid_line(10, 6.0, 5.5), valid_line(20, 5.0, 4.25), valid_line(20, 5.0, 4.25), valid_line(30, 5.5, 4.0)]
    log.write_text("".join(lines))
    (tmp_path / "a" / "train.log.json").write_text(json.dumps(Record("train", "", "", 12.5, True)._asdict()))
    training = table.read_training(tmp_path, "a")
    assert training.curve == [(10, 6.0, 5.5), (20, 5.0, 4.25), (30, 5.5, 4.0)]
    assert training.best == (20, 5.0, 4.25)  # by the loss, as fairseq chooses its best checkpoint
    assert training.seconds == 12.5 and not training.has_converged
    log.write_text(log.read_text() + "early stop since valid performance hasn't improved for last 3 runs\n")
    assert table.read_training(tmp_path, "a").has_converged
    log.write_text(log.read_text() + valid_line(40, 4.0, 3.5))  # trained on
    assert not table.read_training(tmp_path, "a").has_converged
    log.write_text('valid INFO | valid | {"valid_loss": "6.0", "valid_num_updates": "10"}\n')  # of cross_entropy
    assert table.read_training(tmp_path, "a").curve == [(10, 6.0, 6.0)]


def test_a_validation_that_has_diverged_is_never_the_best(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "train.log").write_text(valid_line(10, 6.0, 5.5) + valid_line(20, math.nan, math.nan))
    (tmp_path / "a" / "train.log.json").write_text(json.dumps(Record("train", "", "", 12.5, True)._asdict()))
    assert table.read_training(tmp_path, "a").curve == [(10, 6.0, 5.5)]


def test_of_equal_validations_the_last_is_the_best() -> None:
    """fairseq then writes its best checkpoint again."""
    curve = [table.Validation(10, 5.0, 4.5), table.Validation(20, 5.0, 4.25), table.Validation(30, 5.5, 4.0)]
    assert table.Training(curve, False, 1.0).best.updates == 20


def test_each_row_has_the_results_of_its_own_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(name: str, content: Any) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))

    text = "a b c d e\n" * 3
    write("corpora/toy/text/test.de", text)
    scores: Any = {}
    for seed in (1, 2):
        for number, name in enumerate(("plain", "gated")):
            value = 10 * seed + number
            folder = f"first/seed{seed}/{name}"
            write(f"{folder}/train.log", valid_line(value, 6.0, 5.5))
            write(f"{folder}/train.log.json", Record("train", "", "", value, True)._asdict())
            write(f"{folder}/test.de", text if name == "gated" else "x\n" * 3)
            write(f"{folder}/gates.json", {"all": {"mean": value}})
            scores[seed, name] = {"score": value, "half_width": value + 0.25, "p": value / 100 if number else None}
        systems = [dict.fromkeys(table.METRICS, scores[seed, name]) for name in ("plain", "gated")]
        write(f"first/seed{seed}/compare.json", {"signatures": {"BLEU": "of BLEU"}, "systems": systems})
    plan = read_plan(write_plan(tmp_path))
    commands = PartCommands("first", plan, CorpusCommands("toy", plan.corpora["toy"], tmp_path), MoreOptions())
    monkeypatch.setattr(commands, "is_finished", lambda seed, directory: True)

    def totals(baseline: np.ndarray, system: np.ndarray, metric: Any) -> Any:
        return [metric._compute_score_from_stats(sums.sum(axis=(0, 1))).score for sums in (baseline, system)]

    monkeypatch.setattr(table, "mixed_bootstrap", totals)
    plain, gated = table.PartResults(commands, plan, [1, 2], tmp_path).rows()
    for row, numbers in ((plain, [10, 20]), (gated, [11, 21])):
        assert [training.best.updates for training in row.trainings] == numbers
        assert [training.seconds for training in row.trainings] == numbers
        for metric in table.METRICS:
            assert row.scores[metric] == numbers
            assert row.half_widths[metric] == [number + 0.25 for number in numbers]
    assert plain.p_values["BLEU"] == [None, None] and gated.p_values["chrF2"] == [0.11, 0.21]
    assert set(plain.p_over_seeds.values()) == {None}
    assert gated.p_over_seeds["BLEU"] == pytest.approx([0, 100])
    assert (plain.statistics, gated.statistics) == ({}, {"mean": [11, 21]})


def test_the_table_has_each_number_under_its_heading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: Any = SimpleNamespace(name="first", is_finished=lambda seed, directory: True)
    results = table.PartResults(commands, read_plan(write_plan(tmp_path)), [1, 2], tmp_path)
    trainings = [
        table.Training([table.Validation(10, 6.0, 5.5)], True, 3.0),
        table.Training([table.Validation(20, 5.0, 4.5)], False, 5.0),
    ]
    row = table.Row(
        "gated",
        trainings,
        {"BLEU": [30.0, 34.0], "chrF2": [50.0, 50.0]},
        {"BLEU": [1.0, 2.0], "chrF2": [3.0, 5.0]},
        {"BLEU": [0.25, 0.5], "chrF2": [0.01, 1.0]},
        {"BLEU": 0.125, "chrF2": 0.75},
        {"gate mean": [0.25, 0.75]},
    )
    monkeypatch.setattr(results, "_comparison", lambda seed: {"signatures": {}})
    monkeypatch.setattr(results, "rows", lambda: [row])
    found = results.result().csv
    (values,) = found.rows
    assert dict(zip(found.columns, values)) == {
        **{"system": "gated", "updates": 15.0, "nll": 5.0, "converged": "yes/no", "seconds": 4.0},
        **{"BLEU": 32.0, "± BLEU": 1.5, "s.d. BLEU": pytest.approx(8**0.5)},
        **{"p BLEU": "0.250/0.500", "p of all BLEU": 0.125},
        **{"chrF2": 50.0, "± chrF2": 4.0, "s.d. chrF2": 0.0, "p chrF2": "0.010/1.000", "p of all chrF2": 0.75},
        **{"gate mean": 0.5, "s.d. gate mean": pytest.approx(0.125**0.5)},
    }


class Total:
    """A metric whose score is its statistic's sum."""

    @staticmethod
    def _compute_score_from_stats(sums: Any) -> Any:
        return SimpleNamespace(score=float(sums[0]))


TOTAL: Any = Total()


def test_mixed_bootstrap_tells_seeds_that_agree_from_seeds_that_do_not() -> None:
    rng = np.random.default_rng(1)
    baseline = rng.normal(size=(3, 400, 1))
    better = baseline + 0.5
    # As much better on average, by one seed alone.
    one_seed = baseline + np.array([1.5, 0.0, 0.0])[:, None, None]
    assert table.mixed_bootstrap(baseline, better, TOTAL) < 0.01
    assert table.mixed_bootstrap(baseline, one_seed, TOTAL) > 0.05
    assert table.mixed_bootstrap(baseline, baseline, TOTAL) == 1.0


def test_mixed_bootstrap_without_variance_over_sentences_is_the_t_test() -> None:
    """Student's t of two seeds: one degree of freedom, and here t = 2."""
    baseline = np.zeros((2, 10, 1))
    system = baseline + np.array([0.1, 0.3])[:, None, None]
    expected = 1 - 2 / math.pi * math.atan(2)
    assert table.mixed_bootstrap(baseline, system, TOTAL, resamples=4000) == pytest.approx(expected, abs=0.03)


def test_mixed_bootstrap_of_one_seed_is_that_of_sentences() -> None:
    """By another way: all resamples drawn at once."""
    rng = np.random.default_rng(2)
    differences = rng.normal(0.05, 1, size=(1, 200, 1))
    p = table.mixed_bootstrap(np.zeros((1, 200, 1)), differences, TOTAL, resamples=4000)
    drawn = np.random.default_rng(3).integers(200, size=(4000, 200))
    sums = differences[0, :, 0][drawn].sum(axis=1)
    expected = np.mean(np.abs(sums - sums.mean()) >= abs(differences.sum()))
    assert p == pytest.approx(expected, abs=0.04)


def test_mixed_bootstrap_of_one_seed_agrees_with_sacrebleus() -> None:
    rng = np.random.default_rng(4)
    words = np.array(list("abcdefgh"))
    reference = [" ".join(rng.choice(words, 9)) for _ in range(200)]

    def translate(errors: int) -> List[str]:
        lines = [line.split() for line in reference]
        for line in lines:
            for place in rng.integers(9, size=errors):
                line[place] = str(rng.choice(words))
        return [" ".join(line) for line in lines]

    metric = BLEU(tokenize="none")
    systems = [("first", translate(3)), ("second", translate(3))]
    scores = paired_bootstrap(systems, [reference], {"BLEU": metric})
    expected = scores.by_metric["BLEU"][1].p
    statistics = [np.array([metric._extract_corpus_statistics(text, [reference])]) for _, text in systems]
    p = table.mixed_bootstrap(statistics[0], statistics[1], metric)
    assert expected is not None and 0.01 < expected < 0.5
    assert p / 2 == pytest.approx(expected, abs=0.05)  # sacreBLEU counts one side


@pytest.mark.parametrize("seeds", [2, 3])
@pytest.mark.parametrize("deviation", [0.0, 5.0], ids=["seeds alone", "seeds and sentences"])
def test_chance_seldom_gives_a_small_p(seeds: int, deviation: float) -> None:
    """There is no true difference; with 5.0, the sentences' deviation of the mean is that of a seed."""
    rng = np.random.default_rng(5)
    below = 0
    for _ in range(200):
        of_seeds = rng.normal(0, 0.5, size=(seeds, 1, 1))
        differences = of_seeds + rng.normal(0, deviation, size=(1, 100, 1))
        below += table.mixed_bootstrap(np.zeros((seeds, 100, 1)), differences / 100, TOTAL, resamples=200) < 0.05
    assert below / 200 < 0.07


def test_a_column_that_is_not_there_is_named() -> None:
    report = {"all": {"mean": 0.5}, "systems": [{"x": None}]}
    assert table.look_up(report, "all.mean") == 0.5 and table.look_up(report, "systems.0.x") is None
    for path, key in (("all.maen", "maen"), ("systems.1.x", "1"), ("systems.x", "x"), ("all.mean.x", "x")):
        with pytest.raises(UserError, match=f"column '{path}' is not in the measure's JSON: there is no '{key}'"):
            table.look_up(report, path)


def test_columns_without_a_value_are_not_printed() -> None:
    rows: Any = [["a", None, 1.0], ["b", None, None]]
    assert table.without_empty_columns(table.Table({"x": "", "y": "", "z": ".1f"}, rows)).text().split() == [
        *("x", "z", "---", "---", "a", "1.0", "b", "—")
    ]


# --- a run ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_plan_runs_from_training_to_table_and_makes_nothing_twice(
    warm_commands: WarmPython, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in warm_commands.environment(CUDA_VISIBLE_DEVICES="").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "executable", warm_commands.python)
    directory = tmp_path / "evidence"
    options = [str(SMOKE), "--directory", str(directory), "--jobs", "2"]
    run.main([*options, "--seeds", "1"])
    first = capsys.readouterr().out
    assert "gates (test of toy, seeds 1): Does everything run?" in first
    results = json.loads((directory / "gates" / "table.json").read_text())
    names = [row["name"] for row in results["rows"]]
    assert names == ["transformer", "regularized gates", "inter-sentence gate", "preceding is NULL"]
    assert results["seeds"] == [1] and results["rows"][1]["p_over_seeds"] == {"BLEU": None, "chrF2": None}

    run.main(options)  # the other seed; nothing of the first is made again
    second = capsys.readouterr().out
    assert "seed1/transformer/generated.txt" in first and "> gates/seed1" not in second
    results = json.loads((directory / "gates" / "table.json").read_text())
    assert results["seeds"] == [1, 2]
    for row in results["rows"][:3]:
        assert [training["curve"][-1][0] for training in row["trainings"]] == [20, 20]
    gated = results["rows"][1]
    assert len(gated["statistics"]["gate mean"]) == 2 and all(
        0.3 < mean < 0.7 for mean in gated["statistics"]["gate mean"]
    )
    assert 0 < gated["p_over_seeds"]["chrF2"] <= 1
    for name in ("table.txt", "table.csv", "curves.png", "seed1/lengths.png", "seed2/lengths.txt"):
        assert (directory / "gates" / name).stat().st_size > 0

    # A model that was made with other options is kept, and so is its table.
    changed = tmp_path / "changed.yaml"
    changed.write_text(f"include: [{SMOKE}]\nparts: {{gates: {{train: --lr 1}}}}\n")
    with pytest.raises(SystemExit, match="transformer, seed 1: training was begun by"):
        run.main([str(changed), *options[1:]])
    assert (directory / "gates" / "table.json").exists()
    # The table has all seeds that are finished, also those of which neither plan nor options speak now.
    changed.write_text(f"include: [{SMOKE}]\nparts: {{gates: {{seeds: [2]}}}}\n")
    run.main([str(changed), *options[1:]])
    assert json.loads((directory / "gates" / "table.json").read_text())["seeds"] == [1, 2]
    # A seed whose plan has changed is not reported.
    changed.write_text(f"include: [{SMOKE}]\nparts: {{gates: {{generate: --beam 1}}}}\n")
    run.main([str(changed), *options[1:], "--minutes", "0"])
    assert "gates: no seed is finished" in capsys.readouterr().out
    assert not (directory / "gates" / "table.json").exists()
    assert json.loads((directory / "gates" / "earlier-table.json").read_text()) == results
