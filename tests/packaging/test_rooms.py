"""The package's rooms, its sub-packages and single modules, import each other in one direction only."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path
from typing import Dict, List, Set

from tests.helpers.pages import ROOT

NAME = "fairseq_ctxgates"
MECHANISMS = {"context_gates", "inter_sentence", "relations", "smoothing"}
HOSTS = {"models", "tasks", "modules", "data"}


def room_of(path: Path) -> str:
    """The room that a file belongs to: a folder of the package, or a module beside the folders."""
    first = path.relative_to(ROOT / NAME).parts[0]
    return first[: -len(".py")] if first.endswith(".py") else first


def imported_rooms(path: Path) -> Set[str]:
    """The rooms that a file imports from."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, f"{path}: name the package"
            package, *inner = node.module.split(".")
            if package == NAME:
                found |= {inner[0]} if inner else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            assert all(alias.name.split(".")[0] != NAME for alias in node.names), f"{path}: use from ... import"
    return found - {room_of(path)}


def imports() -> Dict[str, Set[str]]:
    """The rooms that each room imports from."""
    graph: Dict[str, Set[str]] = defaultdict(set)
    for path in (ROOT / NAME).rglob("*.py"):
        if path != ROOT / NAME / "__init__.py":
            graph[room_of(path)] |= imported_rooms(path)
    return graph


def test_there_is_no_circle_of_rooms() -> None:
    graph = imports()
    assert len(graph) > 20
    order: List[str] = []
    while graph:
        lowest = [room for room, others in graph.items() if not others & graph.keys()]
        assert lowest, f"these rooms import each other, directly or through others: {sorted(graph)}"
        order += lowest
        for room in lowest:
            del graph[room]
    assert order.index("modules") < order.index("parts") < order.index("mechanism") < order.index("models")
    assert order.index("models") < order.index("tasks") < order.index("analysis")


def test_a_mechanism_knows_no_other_one_and_a_host_knows_none() -> None:
    graph = imports()
    assert graph.keys() >= MECHANISMS | HOSTS
    for room in MECHANISMS | HOSTS:
        assert not graph[room] & MECHANISMS, room
