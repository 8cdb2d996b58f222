"""The results of the quick start: the measurements of each model, and their table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence

from models import PROBES, Model
from runner import slug


def read_results(models: Sequence[Model], directory: Path) -> Dict[str, Dict[str, Any]]:
    """The BLEU, probes and gates of each row of the table, by the name of the row."""

    def load(row: str, name: str) -> Any:
        return json.loads((directory / "models" / slug(row) / name).read_text(encoding="utf-8"))

    results = {}
    for model in models:
        for row in (model.name, *(ablation for ablation, _ in model.ablations)):
            results[row] = {"bleu": load(row, "bleu.json"), "probes": load(row, "probes.json")}
        if model.has_gates:
            results[model.name].update(
                gates=load(model.name, "gates.json"), trap_gates=load(model.name, "trap-gates.json")
            )
    return results


def table_rows(results: Dict[str, Dict[str, Any]]) -> Iterator[List[str]]:
    """The header, and a row for each model and ablation."""
    probes = [probe[len("probe-") :] for probe in PROBES]
    yield ["model", "BLEU", *probes, "gate mean", "variance", "agreement", "hinge", "trap agreement"]
    for name, result in results.items():
        row = [name, f"{result['bleu']['score']:.1f}", *(f"{result['probes'][split]:.2f}" for split in PROBES.values())]
        if "gates" not in result:
            yield [*row, *["—"] * 5]
            continue
        gates, trap = result["gates"]["all"], result["trap_gates"]["all"]
        row += [f"{gates['mean']:.3f}", f"{gates['variance']:.4f}"]
        yield [*row, f"{gates['mean_agreement']:.3f}", f"{gates['mean_hinge']:.4f}", f"{trap['mean_agreement']:.3f}"]


def format_report(results: Dict[str, Dict[str, Any]]) -> str:
    """The table, and below it the meaning of its columns."""
    rows = list(table_rows(results))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))])
        for row in rows
    ]
    bleu = next(iter(results.values()))["bleu"]
    lines += ["", f"BLEU: test; sacreBLEU {bleu['signature']}"]
    lines += ["preceding to unknown: share of the probed words that the model ranks first, given the words before"]
    gated = next((result for result in results.values() if "gates" in result), None)
    if gated:
        majority = [f"{gated[key]['majority_share']:.3f}" for key in ("gates", "trap_gates")]
        lines += [
            "gates: every component on test, 1 is all source; agreement: share of gates whose mean is on their label's",
            "side of 0.5, on test and on the collocation probe (the trap); always choosing the commoner one would give "
            + " and ".join(majority),
        ]
    return "\n".join(lines)
