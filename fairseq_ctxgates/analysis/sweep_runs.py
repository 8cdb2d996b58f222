"""A run of a sweep: a model that is trained with one setting of an option, and its translations."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional, Sequence

import ctxgates
from fairseq_ctxgates.analysis.report import write_whole
from fairseq_ctxgates.analysis.systems import read_translations
from fairseq_ctxgates.data.data_directory import digest_of, find_splits, fingerprint
from fairseq_ctxgates.errors import UserError, one_line
from fairseq_ctxgates.processes import ending_with_parent

TAIL = 20  # how many of the log's last lines are shown if a command fails


@dataclass(frozen=True)
class Run:
    """A setting of the option: its name, its training options, and its folder."""

    name: str
    options: Sequence[str]
    folder: Path

    def train(self, data: str, options: Sequence[str], checkpoint: str, data_digests: Dict[str, str]) -> None:
        """Train the model with these options and the run's own, unless it has been trained with them already.

        Args:
            data: the data directories, as fairseq takes them
            data_digests: of what it is trained on; the directories may have moved since

        Raises:
            UserError: the training failed, or the folder holds a model that was trained with other options or on other
                data.
        """
        options = [*options, *self.options]
        provenance_file = self.folder / "train.log.json"
        before = read_provenance(provenance_file)
        if any(self.folder.glob("*.pt")):
            if not is_same_data(before, data_digests):
                raise UserError(
                    f"{self.folder} holds a model that was trained on other data than {data} holds now: remove the "
                    f"folder, or name another --save-dir"
                )
            self._check_options(before, options)
            if before.get("done"):
                if not (self.folder / checkpoint).is_file():
                    raise UserError(
                        f"{self.folder} holds no {checkpoint}, and its training is done: check --checkpoint, or remove "
                        f"the folder to train anew"
                    )
                return
        provenance = {"options": values_of(options), "data": data_digests}
        write_provenance(provenance_file, {**provenance, "done": False})
        print(f"training {self.name}: {self.folder / 'train.log'}", flush=True)
        command = ["train", data, *with_plugin(options), "--save-dir", str(self.folder)]
        fairseq(command, self.folder / "train.log", self.folder / "train.log")
        if not (self.folder / checkpoint).is_file():
            raise UserError(f"training did not write {self.folder / checkpoint}: check --checkpoint and --train")
        write_provenance(provenance_file, {**provenance, "done": True})

    def check_trained(self) -> None:
        """Raise UserError if there is no folder, or the training by this command was broken off."""
        if not self.folder.is_dir():
            raise UserError(f"{self.folder} not found: give --train to have it trained, or check --save-dir")
        provenance_file = self.folder / "train.log.json"
        if read_provenance(provenance_file).get("done") is False:
            raise UserError(
                f"{self.folder} holds a model whose training was broken off: give --train again, which goes on with "
                f"it, or remove {provenance_file} to take the model as it is"
            )

    def translate(
        self, data: str, split: str, options: Sequence[str], checkpoint: str, data_digests: Dict[str, str]
    ) -> List[str]:
        """The translations of a split by fairseq-generate with these options; existing ones are not made again.

        Raises:
            UserError: there is no checkpoint, or fairseq-generate failed.
        """
        path = self.folder / checkpoint
        if not path.is_file():
            raise UserError(f"{path} not found: give --train to have it trained, or check --save-dir and --checkpoint")
        output, provenance_file = self.folder / f"{split}.out", self.folder / f"{split}.out.json"
        provenance = {"options": values_of(options), "checkpoint_time": path.stat().st_mtime_ns}
        before = read_provenance(provenance_file)
        is_same = all(before.get(name) == value for name, value in provenance.items())
        if not (is_same and is_same_data(before, data_digests) and output.exists()):
            if provenance_file.exists():
                provenance_file.unlink()
            print(f"translating with {self.name}: {output}", flush=True)
            output.unlink(missing_ok=True)
            command = ["generate", data, *with_plugin(options), "--path", str(path), "--gen-subset", split]
            # The log has its own file: otherwise one of its lines might appear in the middle of a translation.
            fairseq(command, output, self.folder / f"{split}.log")
            write_provenance(provenance_file, {**provenance, "data": data_digests})
        return read_translations(output)

    def _check_options(self, before: Dict[str, object], options: Sequence[str]) -> None:
        """Raise UserError unless the model, which has this provenance, was trained with these options."""
        trained, given = before.get("options"), values_of(options)
        if not isinstance(trained, dict):
            raise UserError(
                f"{self.folder} holds a model that this command did not train: leave --train out to take it as it is, "
                f"or name another --save-dir, or remove the folder"
            )
        if trained != given:
            there, here = (
                " ".join(f"{name} {value}".strip() for name, value in values.items() if others.get(name) != value)
                for values, others in ((trained, given), (given, trained))
            )
            if before.get("done"):
                remedy = "leave --train out to take it as it is"
            else:
                remedy = "its training was broken off: give the same options to go on with it"
            raise UserError(
                f"{self.folder} holds a model that was trained with other options (there: {there or 'without these'}; "
                f"here: {here or 'without these'}): {remedy}, or name another --save-dir, or remove the folder"
            )


def digests(data_dirs: Sequence[Path], names: Sequence[str], languages: Sequence[str]) -> Dict[str, str]:
    """Digests of splits in data directories: of their text with the dictionaries, and of what their side streams were
    made from. They are named by the number of the directory, which may move."""
    found = {}
    for number, data_dir in enumerate(data_dirs, start=1):
        for split in find_splits(data_dir, *languages):
            if split.name in names and split.has_target():
                found[f"{number}/{split.name}"] = json.dumps(fingerprint(split))
                streams = data_dir.glob(f"{split.name}.*.{'-'.join(languages)}.json")
                found.update({f"{number}/{path.name}": digest_of(path) for path in sorted(streams)})
    return found


def is_same_data(before: Dict[str, object], now: Dict[str, str]) -> bool:
    """Whether a provenance has the same digests, as far as both have them: streams may have been added since."""
    known = before.get("data")
    return not isinstance(known, dict) or all(known.get(name, digest) == digest for name, digest in now.items())


def values_of(options: Sequence[str]) -> Dict[str, str]:
    """The options of a command line with their values, as text; the last value of an option counts."""
    values: Dict[str, str] = {}
    flag = ""
    for part in options:
        if part.startswith("-") and number_in(part) is None:
            flag, is_given, value = part.partition("=")
            values[flag] = shlex.quote(value) if is_given else ""
        else:
            values[flag] = f"{values.get(flag, '')} {shlex.quote(part)}".strip()
    return values


def number_in(text: str) -> Optional[float]:
    """The number that a text is; None if it is none."""
    try:
        return float(text)
    except ValueError:
        return None


def with_plugin(options: Sequence[str]) -> List[str]:
    """The options, preceded by this plugin's ``--user-dir`` and ``--task`` unless they contain those."""
    defaults = (("--user-dir", ctxgates.user_dir()), ("--task", "context_translation"))
    return [*(part for name, value in defaults if name not in options for part in (name, value)), *options]


def read_provenance(path: Path) -> Dict[str, object]:
    """The provenance of a run's file: what made it, and of what; empty if it was not made."""
    try:
        provenance = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({one_line(error)}): remove it") from error
    if not isinstance(provenance, dict):
        raise UserError(f"{path} is damaged (it holds no JSON object): remove it")
    return provenance


def write_provenance(path: Path, provenance: Dict[str, object]) -> None:
    """Store the provenance of a run's file."""
    write_whole(path, json.dumps(provenance, indent=2).encode())


def fairseq(command: Sequence[str], output: Path, log: Path) -> None:
    """Run a fairseq command (``train``, ...) with its arguments. What it prints is appended to ``output``, and what it
    logs is appended to ``log``, which may be the same file.

    Raises:
        UserError: the command failed; the message has the end of the log.
    """
    with open(output, "ab") as printed, open(log, "ab") as logged:
        done = subprocess.run(
            ending_with_parent([sys.executable, "-m", f"fairseq_cli.{command[0]}", *command[1:]]),
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=logged,
        )
    if done.returncode:
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:]
        failed = f"fairseq-{shlex.join(command)} failed (status {done.returncode}). The end of {log}:"
        raise UserError("\n".join([failed, *tail]))
