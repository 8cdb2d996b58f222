"""Reading text files, atomic writes, scratch folders, and the clean-up after a failed command."""

from __future__ import annotations

import gzip
import os
import shutil
import signal
import socket
import sys
import uuid
import zlib
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Iterable, Iterator, List, Sequence, TextIO, cast

import numpy as np

from fairseq_ctxgates.errors import UserError


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, and rename it to ``path`` at the end of the block.

    The temporary file is removed when the block fails. Several threads or machines may write the same file at once.
    """
    with atomic_write_group([path]) as (temporary,):
        yield temporary


@contextmanager
def atomic_write_group(paths: Sequence[Path]) -> Iterator[List[Path]]:
    """Yield temporary paths for files that belong together, and rename all of them at the end of the block.

    The last file marks the group as complete. In a group of several files it is removed before the first file is
    renamed, and it is renamed last: a process that is killed between two renames leaves a group without its last file,
    which readers must refuse. When the block fails, the temporary files are removed and the old files stay; when a
    rename fails, the whole group is removed.
    """
    temporaries = [path.with_name(f".{path.name}.{uuid.uuid4().hex}") for path in paths]
    try:
        yield temporaries
        _rename_group(temporaries, paths)
    finally:
        _remove_files(temporaries)


def _rename_group(temporaries: Sequence[Path], paths: Sequence[Path]) -> None:
    if len(paths) == 1:
        os.replace(temporaries[0], paths[0])
        return
    try:
        _remove_files(paths[-1:])
        for temporary, path in zip(temporaries, paths):
            os.replace(temporary, path)
    except BaseException:  # also the exit that a signal causes
        _remove_files(reversed(paths))
        raise


def _remove_files(paths: Iterable[Path]) -> None:
    for path in paths:
        with suppress(FileNotFoundError):
            path.unlink()


@contextmanager
def scratch_folder(folder: Path, name: str) -> Iterator[Path]:
    """Yield a new folder for intermediate results, and remove it at the end of the block.

    Scratch folders that a killed process of this machine left in ``folder`` are removed as well.
    """
    prefix = f".{name}.{socket.gethostname()}"
    for old in folder.glob(f"{prefix}.*"):
        if not is_running(int(old.suffix[1:])):
            shutil.rmtree(old, ignore_errors=True)
    scratch = folder / f"{prefix}.{os.getpid()}"
    scratch.mkdir()
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def is_running(process_id: int) -> bool:
    """Whether a process with this id runs on this machine."""
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def write_array(path: Path, array: np.ndarray) -> None:
    """Write the raw bytes of an array atomically."""
    with atomic_write(path) as temporary:
        array.tofile(temporary)


def open_text(path: Path) -> TextIO:
    """Open a UTF-8 text file for reading; a file whose name ends in ``.gz`` is decompressed."""
    if path.suffix == ".gz":
        return cast(TextIO, gzip.open(path, "rt", encoding="utf-8"))
    return open(path, encoding="utf-8")


def read_lines(path: Path) -> List[str]:
    """The lines of a UTF-8 text file, without the white space around them; ``.gz`` files are decompressed.

    Raises:
        UserError: the file cannot be read, is damaged, or is not UTF-8
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise UserError(f"{path} not found: check the path") from error
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; name a text file") from error
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise UserError(f"{path} is not a complete gzip file ({error}): make it again") from error
    try:
        lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}, line {line}: not text in UTF-8 ({error.reason}); convert the file") from error
    if not lines[-1]:
        lines.pop()
    return [line.strip() for line in lines]


@contextmanager
def clean_up_on_failure() -> Iterator[None]:
    """Make SIGTERM and file system errors end a command cleanly.

    Inside the block SIGTERM raises SystemExit, so that context managers remove incomplete files.

    Raises:
        UserError: in place of an OSError of the block
    """
    previous_handler = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        raise UserError(f"{place}{error.strerror or error}; incomplete output files were removed") from error
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
