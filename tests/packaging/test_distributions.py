"""The wheel and the sdist: what is in them, what installing them changes, and that they work from another folder."""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Dict, List, Set

import pytest
from packaging.requirements import Requirement

import ctxgates
import fairseq_ctxgates
from tests.helpers.corpus import binarize
from tests.helpers.fairseq_commands import SMOOTHED, make_pairs
from tests.helpers.pages import ROOT

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.xdist_group("distributions")]
IGNORED = (".git", ".venv*", "__pycache__", "*.egg-info", "build", "dist", "shared", "quickstart-demo", ".*_cache")


def run(*command: object, **options: object) -> str:
    """What a command prints; it must succeed."""
    done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, text=True, check=True, **options)  # type: ignore[call-overload]
    printed: str = done.stdout
    return printed


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist of this tree, and the wheel that was built from the sdist."""
    folder = tmp_path_factory.mktemp("distributions")
    shutil.copytree(ROOT, folder / "tree", ignore=shutil.ignore_patterns(*IGNORED))
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", folder / "tree")
    return folder / "dist"


@pytest.fixture(scope="session")
def wheel(distributions: Path) -> Path:
    (path,) = distributions.glob("*.whl")
    return path


def test_wheel_has_the_whole_package_and_the_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (information,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        fields = email.message_from_bytes(archive.read(information))
    files = [
        path for path in (ROOT / "fairseq_ctxgates").rglob("*") if path.suffix in (".html", ".py", ".yaml", ".typed")
    ]
    expected = {path.relative_to(ROOT).as_posix() for path in files} | {"ctxgates.py"}
    assert expected == {name for name in names if ".dist-info/" not in name}
    assert [name for name in names if re.search(r"\.dist-info/(licenses/)?LICENSE$", name)]
    assert (fields["Name"], fields["Version"]) == ("fairseq-ctxgates", fairseq_ctxgates.__version__)
    assert fields["License"] == "MIT" or fields["License-Expression"] == "MIT"
    assert fields["Description-Content-Type"] == "text/markdown"
    assert fields["Summary"] and fields["Keywords"] and fields["Requires-Python"]
    assert f"version: {fairseq_ctxgates.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## {fairseq_ctxgates.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_sdist_has_what_the_pages_refer_to(distributions: Path) -> None:
    (path,) = distributions.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("README.md", "LICENSE", "Makefile", "CHANGELOG.md", "examples/quickstart/run.py", "docs/decisions.md"):
        assert name in names
    assert not [name for name in names if name.endswith(".pyc")]


def requirements(wheel: Path, extra: str, python: str) -> Set[str]:
    """The names of the packages that an extra, or with "" the base, installs with a version of Python."""
    with zipfile.ZipFile(wheel) as archive:
        (information,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        fields = email.message_from_bytes(archive.read(information))
    every = map(Requirement, fields.get_all("Requires-Dist") or [])
    environment = {"extra": extra, "python_version": python, "python_full_version": f"{python}.0"}
    return {one.name for one in every if one.marker is None or one.marker.evaluate(environment)}


def test_the_fairseq_of_each_python(wheel: Path) -> None:
    assert requirements(wheel, "", "3.12") == requirements(wheel, "", "3.8") == set()
    for python, fairseq in (
        ("3.8", "fairseq"),
        ("3.10", "fairseq"),
        ("3.11", "fairseq-fixed"),
        ("3.12", "fairseq-fixed"),
    ):
        assert {name for name in requirements(wheel, "fairseq", python) if "fairseq" in name} == {fairseq}
        every = requirements(wheel, "all", python)
        assert {"numba", "stanza", "gensim", "distributed", "matplotlib", "sacremoses"} <= every
        assert not {"fairseq", "fairseq-fixed", "torch"} & every


# --- environments of others -------------------------------------------------------------------------------------------


def make_environment(folder: Path, packages: Dict[str, str]) -> Path:
    """A virtual environment with stand-ins of these packages, each a module without content; its site-packages."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    (site,) = folder.glob("lib/python*/site-packages")
    for name, version in packages.items():
        (site / f"{name}.py").write_text("")
        information = site / f"{name}-{version}.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (information / "RECORD").write_text("")
        (information / "INSTALLER").write_text("pip\n")
    return site


def installed(site: Path) -> Dict[str, str]:
    """The packages of an environment and their versions."""
    return {found.metadata["Name"]: found.version for found in metadata.distributions(path=[str(site)])}


def install(wheel: Path, environment: Path) -> None:
    """Install the wheel with what it requires. There is no index, so that pip could get none of it."""
    pip = ("-m", "pip", "--disable-pip-version-check", "--python", environment)
    run(sys.executable, *pip, "install", "--no-index", "--quiet", wheel)


@pytest.mark.parametrize("version", ["0.12.2", "0.12.3", "0.13.2"])
def test_installing_changes_nothing_where_a_fairseq_is(version: str, wheel: Path, tmp_path: Path) -> None:
    site = make_environment(tmp_path / "env", {"fairseq": version, "torch": "1.10.0", "numpy": "1.19.5"})
    before = installed(site)
    contents = {path: path.read_bytes() for path in site.rglob("*") if path.is_file()}
    install(wheel, tmp_path / "env")
    after = installed(site)
    assert after.pop("fairseq-ctxgates") == fairseq_ctxgates.__version__
    assert after == before == {"fairseq": version, "torch": "1.10.0", "numpy": "1.19.5"}
    assert all(path.read_bytes() == content for path, content in contents.items())


def test_without_fairseq_the_command_says_so(wheel: Path, tmp_path: Path) -> None:
    site = make_environment(tmp_path / "env", {})
    install(wheel, tmp_path / "env")
    command = tmp_path / "env" / "bin" / "ctxgates"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    assert run(command, "user-dir", env=environment, cwd=tmp_path).strip() == str(site / "fairseq_ctxgates")
    assert run(command, "--version", env=environment).strip() == f"ctxgates {fairseq_ctxgates.__version__}"
    for arguments in (["describe", "."], ["analyze", "gates", "--help"]):
        done = subprocess.run([str(command), *arguments], env=environment, capture_output=True, text=True)
        remedy = "pip install 'fairseq-ctxgates[fairseq]'"
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"error: fairseq is not installed in this environment: {remedy}\n"


# --- from another folder ----------------------------------------------------------------------------------------------

# In one process, because importing fairseq takes seconds: runs the commands of a JSON list, each a list of words.
COMMANDS = """
import importlib, json, sys
for name, *words in json.loads(sys.argv[1]):
    print("$", name, flush=True)
    if name == "ctxgates":
        import ctxgates
        ctxgates.main(words)
    else:
        sys.argv = [f"fairseq-{name}", *words]
        importlib.import_module(f"fairseq_cli.{name}").cli_main()
import fairseq_ctxgates
print("package", fairseq_ctxgates.__file__)
"""


def test_wheel_trains_and_translates_from_another_folder(wheel: Path, tmp_path: Path) -> None:
    """The quick start's steps at the size of a test; .ci/run runs its short form from the wheel."""
    site, folder = tmp_path / "site", tmp_path / "elsewhere"
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site, wheel)
    pairs = {name: make_pairs(24, seed) for seed, name in enumerate(("train", "valid", "test"))}
    binarize(folder / "data-bin", pairs, "de", "en", joined=True)
    user_dir = ("--user-dir", str(site / "fairseq_ctxgates"), "--task", "context_translation")
    common = ("data-bin", *user_dir, "--source-lang", "de", "--target-lang", "en", "--cpu", "--num-workers", "0")
    size = (
        "--share-all-embeddings",
        "--optimizer",
        "adam",
        *SMOOTHED,
        "--lr",
        "0.005",
        "--batch-size",
        "8",
        "--max-update",
        "2",
    )
    commands: List[List[str]] = [
        ["train", *common, "--arch", "rcg_transformer_tiny", *size, "--save-dir", "gated", "--no-epoch-checkpoints"],
        ["generate", *common, "--path", "gated/checkpoint_last.pt", "--beam", "2", "--max-len-b", "8"],
        ["ctxgates", "describe", "data-bin"],
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *installed_for_tests()])}
    printed = run(sys.executable, "-c", COMMANDS, json.dumps(commands), cwd=folder, env=environment)
    assert len(re.findall(r"^H-\d+\t", printed, re.MULTILINE)) == 24
    assert "no side streams and no tables" in printed
    assert f"package {site / 'fairseq_ctxgates' / '__init__.py'}" in printed
    assert str(ROOT) not in printed.replace(str(tmp_path), "")


def installed_for_tests() -> List[str]:
    """The entries of PYTHONPATH that are not this tree."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [entry for entry in entries if entry and Path(entry).resolve() != Path(ctxgates.__file__).parent]
