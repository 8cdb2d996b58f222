"""The benchmarks' figures are of a quiet machine, or there are none."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gate_labels_scale, timing, transformer_speed
from fairseq_ctxgates.relations.mask import pack_tuples
from tests.helpers.corpus import binarize
from tests.helpers.fairseq_commands import make_pairs, write_gate_labels, write_relations
from tests.helpers.pages import ROOT
from warm_python import WarmPython

TINY = (
    "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 8 --decoder-embed-dim 8 --encoder-ffn-embed-dim 8 "
    "--decoder-ffn-embed-dim 8 --encoder-attention-heads 1 --decoder-attention-heads 1 --share-all-embeddings"
)


def test_both_models_run_the_same_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = binarize(tmp_path / "data", {"train": make_pairs(40, seed=1)}, "de", "en", joined=True)
    options = f"{data} -s de -t en --arch context_transformer --blocks 2 --batches 1 --max-tokens 200 --length 3"
    found: list[list[dict[str, Any]]] = []
    monkeypatch.setattr(transformer_speed, "report", lambda results, *_: found.append(list(results)))
    monkeypatch.setattr(sys, "argv", ["transformer_speed.py", *options.split(), "--size", TINY, "--device", "cpu"])
    transformer_speed.main()
    (results,) = found
    assert [result["what"] for result in results] == ["training", "decoding"]
    training, decoding = (result["allowed_by_count"] for result in results)
    if transformer_speed.CAN_COUNT:
        assert training == 1
        assert decoding > 1  # beams of a sentence share its keys and values
    for result in results:
        assert list(result["tokens_per_second"]) == ["transformer", "context_transformer"]
        assert result["noise"] >= 0
        assert min(result["ratio_min"], result["ratio_by_processor_time"]) > 0


@pytest.mark.parametrize("task", ["translation", "context_translation"])
def test_decoding_has_smaller_batches(tmp_path: Path, task: str) -> None:
    """Of as many tokens as training has, divided among the beams; also where the task keeps its batches."""
    data = binarize(tmp_path / "data", {"train": make_pairs(200, seed=1)}, "de", "en", joined=True)
    args = Namespace(
        data=str(data), source_lang="de", target_lang="en", max_tokens=400, size=TINY, beam=4, batches=2, threads=1
    )
    options = f"--task {task} --arch transformer --criterion label_smoothed_cross_entropy"
    system = transformer_speed.build_system("model", options.split(), args)
    system.task.load_dataset("train")
    training, decoding = transformer_speed.first_batches(system.task, args)
    assert (len(training), len(decoding)) == (2, 1)
    for batches, most in ((training, 400), (decoding, 100)):
        assert all(most / 2 < batch["net_input"]["src_tokens"].numel() <= most for batch in batches)


@pytest.mark.slow
def test_what_is_measured_on_a_gpu(tmp_path: Path, warm_commands: WarmPython) -> None:
    """The script runs on a CPU as well, at a tiny size; what is there is not made again."""
    data = binarize(
        tmp_path / "work" / "corpora" / "captions" / "data-bin",
        {"train": make_pairs(40, seed=1)},
        "en",
        "de",
        joined=True,
    )
    write_gate_labels(data, ["train"], ("en", "de"))
    write_relations(data, "train", [pack_tuples([[0]])] * 40, ("en", "de"))
    with tarfile.open(tmp_path / "work.tar.gz", "w:gz") as archive:  # as `gpu.sh prepare` leaves it
        archive.add(tmp_path / "work" / "corpora", "corpora")
    shutil.rmtree(tmp_path / "work")
    variables = {"PYTHON": warm_commands.python, "ARCHITECTURES": "rcg_transformer fra_transformer", "SIZE": TINY}
    variables["SPEED_OPTIONS"] = "--blocks 1 --batches 1 --max-tokens 200 --length 3 --device cpu"
    variables["KERNEL_OPTIONS"] = "--repeats 2 --batches 1 --max-tokens 200 --length 3 --device cpu"
    variables["PYTEST_OPTIONS"] = "-k test_interpolation"
    variables["PLAN"] = f"{ROOT}/examples/evidence/plans/smoke.yaml --dry-run"
    command = ["bash", str(ROOT / "benchmarks" / "gpu.sh"), "run", str(tmp_path / "work"), str(tmp_path / "results")]

    def run() -> str:
        done = subprocess.run(command, env=warm_commands.environment(**variables), stdout=subprocess.PIPE, text=True)
        assert done.returncode == 0, done.stdout
        return done.stdout

    assert run().count("==") == 6
    for name in ("speed.json", "speed.bf16.json"):
        found = json.loads((tmp_path / "results" / name).read_text())
        assert [result["what"] for result in found["results"]] == 2 * ["training", "decoding"]
        assert list(found["results"][2]["tokens_per_second"]) == ["transformer", "fra_transformer"]
        assert ("bfloat16" in found["size"]) == ("bf16" in name)
    for name in ("kernels.json", "kernels.bf16.json"):
        results = json.loads((tmp_path / "results" / name).read_text())["results"]
        assert [result["what"] for result in results] == 2 * ["training", "decoding"]
        for result, arch in zip(results, (*2 * ["rcg_transformer"], *2 * ["fra_transformer"])):
            assert list(result["seconds"]) == ["transformer", arch]
            assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in result["seconds"].values())
    assert "fairseq-train" in (tmp_path / "results" / "evidence.txt").read_text()
    assert "1 passed" in (tmp_path / "results" / "tests.txt").read_text()
    with tarfile.open(tmp_path / "results.tar") as archive:
        assert "./speed.json" in archive.getnames()
    assert run() == "== evidence.txt\n"


@pytest.mark.process
def test_what_labels_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--sentences", "50", "100", "--length", "5", "--types", "20", "--json", str(tmp_path / "scale.json")]
    monkeypatch.setattr(sys, "argv", ["gate_labels_scale.py", *options])
    gate_labels_scale.main()
    found = json.loads((tmp_path / "scale.json").read_text())["results"]
    assert [result["sentences"] for result in found] == [50, 100]
    assert found[1]["pairs"] > found[0]["pairs"] > 0
    assert 1 << 25 < found[0]["own_memory"] < 1 << 33
    assert "| 100 |" in capsys.readouterr().out


class FakeSystem:
    """A model whose blocks of 100 tokens take these seconds."""

    def __init__(self, name: str, seconds: list[float]) -> None:
        self.name = name
        self._seconds = iter([9.0, *seconds])  # the first warms up

    def run(self, what: str) -> timing.Block:
        seconds = next(self._seconds)
        return timing.Block(100, seconds, 2 * seconds, 1)


def test_a_quiet_moment_is_waited_for() -> None:
    """The first consecutive blocks of a quiet machine count, or the least noisy ones when patience ends; the ratio has
    no say."""
    stock, ours = [1.0, 2.0, 1.0, 1.05, 1.0, 1.0], [2.0, 4.0, 0.5, 0.5, 0.52, 0.4]

    def compare(blocks: int, patience: int) -> tuple[float, float, int]:
        systems = FakeSystem("transformer", stock), FakeSystem("other", ours)
        result = timing.compare_speed("training", *systems, blocks, patience)  # type: ignore[arg-type]
        assert result["blocks"]["counted"] == blocks
        return result["ratio"], result["noise"], result["blocks"]["run"]

    assert compare(3, 0) == pytest.approx((0.5, 7, 3))
    assert compare(3, 3) == pytest.approx((2.0, 0.05, 5))
    assert compare(4, 1) == pytest.approx((1.25, 7, 5))


@pytest.mark.parametrize("noise", [0.05, 0.2])
def test_a_noisy_machine_gives_no_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str], noise: float) -> None:
    numbers = ("ratio", "ratio_min", "ratio_max", "ratio_by_processor_time", "allowed_by_count", "of_allowed")
    result = {"what": "training", "tokens_per_second": {"transformer": 100, "other": 120}, "noise": noise}
    results = [{**result, **dict.fromkeys(numbers, 1.2)}, {**result, **dict.fromkeys(numbers, 1.2), "noise": 0.01}]
    args = Namespace(device="cpu", threads=1, json=str(tmp_path / "speed.json"))
    if noise < timing.MAX_NOISE:
        timing.report(results, args, "tiny")
        assert json.loads(Path(args.json).read_text())["results"] == results
    else:
        with pytest.raises(SystemExit, match="no figures of training of other: .* one model's blocks differ by 20%"):
            timing.report(results, args, "tiny")
        assert json.loads(Path(args.json).read_text())["results"] == results[1:]
    setting = json.loads(Path(args.json).read_text())
    printed = capsys.readouterr().out
    assert f"{setting['device']}, 1 threads, tiny\n" in printed
    assert setting["device"] != "cpu", "which processor"
    assert "| training | other | transformer | 120 | 100 | 1.200 (1.200-1.200)" in printed
