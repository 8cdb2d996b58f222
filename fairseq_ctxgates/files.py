"""Reading text files, atomic writes, scratch folders, and the clean-up after a failed command."""

from __future__ import annotations

import errno
import glob
import gzip
import os
import re
import shutil
import signal
import sys
import tempfile
import uuid
import zlib
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Iterable, Iterator, List, Optional, Sequence, cast

import numpy as np

from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.locks import create_locked, remove_abandoned

LINE_END = re.compile("\r\n|\r|\n")  # of the lines that Python, and so fairseq, reads
_RANDOM_PATTERN = "[0-9a-f]" * 32  # uuid4().hex in the names of temporary files


@contextmanager
def atomic_write(path: Path, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path to write to, and rename it to ``path`` at the end of the block.

    The temporary file is removed when the block fails. Several threads or machines may write the same file at once.
    The new file has the permissions of the old one. If ``path`` is a symbolic link, the file that it points to is
    replaced. If ``path`` exists and is not a regular file, such as ``/dev/full``, it is yielded itself. If it is an
    open file of this process, such as ``/dev/stdout``, the content is appended to that file, whatever it is.

    Raises:
        OSError: the error of the block; it names ``path``, not the temporary one, also if the disk is full
    """
    with name_file_if_disk_full(path):
        descriptor = descriptor_of(path)
        if descriptor is not None:
            with tempfile.TemporaryDirectory() as folder:
                yield Path(folder, path.name)
                _add_to(descriptor, Path(folder, path.name))
        elif not is_replaced(path):
            yield path
        else:
            with atomic_write_group([path.resolve()], durable=durable) as (temporary,):
                yield temporary


def descriptor_of(path: Path) -> Optional[int]:
    """The number of the open file of this process that a path names; None if the path names none."""
    names = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
    numbered = re.fullmatch(r"/(?:dev|proc/self)/fd/(\d+)", os.path.abspath(path))
    return int(numbered[1]) if numbered else names.get(os.path.abspath(path))


def is_replaced(path: Path) -> bool:
    """Whether :func:`atomic_write` creates or replaces a file at this path, and does not write to what is there."""
    return descriptor_of(path) is None and (path.is_file() or not path.exists())


def _add_to(descriptor: int, content: Path) -> None:
    sys.stdout.flush()  # so that the content comes after what was printed before
    with open(content, "rb") as source, open(descriptor, "wb", closefd=False) as target:
        shutil.copyfileobj(source, target)


@contextmanager
def name_file_if_disk_full(path: Path) -> Iterator[None]:
    """As :func:`with_name_if_disk_full`, for an error of the block."""
    try:
        yield
    except OSError as error:
        raise with_name_if_disk_full(error, path) from error


def with_name_if_disk_full(error: OSError, path: Path) -> OSError:
    """The error, with the name of the file that was written if the disk is full and the error does not name one."""
    if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return OSError(error.errno, error.strerror, str(path))
    return error


@contextmanager
def atomic_write_group(paths: Sequence[Path], marks: Sequence[Path] = (), durable: bool = True) -> Iterator[List[Path]]:
    """Yield temporary paths for files that belong together, and rename all of them at the end of the block.

    The marks are files that say that the group is complete: the old ones are removed before the first file is renamed,
    and the new ones are renamed last. A process that is killed between two renames leaves a group without some mark,
    which readers must refuse. When the block fails, the temporary files are removed and the old files stay; when a
    rename fails, the whole group is removed. Temporary files that killed processes left are removed first. If a path is
    a symbolic link, the link is replaced, because the file that it points to may belong to another group, under another
    lock. If a path is a folder, nothing is changed.

    Args:
        durable: also after a power failure, there is either the old or the new file
    """
    paths = [*paths, *marks]
    for path in paths:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        remove_abandoned(path.parent.glob(f".{glob.escape(path.name)}.{_RANDOM_PATTERN}"))
    temporaries = [path.with_name(f".{path.name}.{uuid.uuid4().hex}") for path in paths]
    with ExitStack() as stack:
        stack.enter_context(_report_final_names(temporaries, paths))
        stack.callback(_remove_files, temporaries)
        for temporary in temporaries:
            stack.callback(_close, create_locked(temporary))
        yield temporaries
        for temporary, path in zip(temporaries, paths):
            with suppress(FileNotFoundError):  # there is no old file
                shutil.copymode(path, temporary)
        if durable:
            for temporary, path in zip(temporaries, paths):
                with name_file_if_disk_full(path):
                    _flush(temporary)
        _rename_group(temporaries, paths, marks)
        if durable:
            for folder in {path.parent for path in paths}:
                _flush(folder)


@contextmanager
def _report_final_names(temporaries: Sequence[Path], paths: Sequence[Path]) -> Iterator[None]:
    """Let errors of the block name the files that the user knows, not their temporary ones."""
    try:
        yield
    except OSError as error:
        names = dict(zip(map(str, temporaries), map(str, paths)))
        error.filename = names.get(str(error.filename), error.filename)
        error.filename2 = names.get(str(error.filename2), error.filename2)  # of shutil.copyfile: where it copies to
        raise


def _close(descriptor: Optional[int]) -> None:
    if descriptor is not None:
        os.close(descriptor)


def _flush(path: Path) -> None:
    """Have the system write a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems cannot do this, most often for folders
            raise
    finally:
        os.close(descriptor)


def _rename_group(temporaries: Sequence[Path], paths: Sequence[Path], marks: Sequence[Path]) -> None:
    try:
        _remove_files(marks)
        for temporary, path in zip(temporaries, paths):
            os.replace(temporary, path)
    except BaseException:  # including the exit that a signal causes
        if len(paths) > 1:
            _remove_files([*marks, *paths])
        raise


def _remove_files(paths: Iterable[Path]) -> None:
    for path in paths:
        with suppress(FileNotFoundError):
            path.unlink()


@contextmanager
def scratch_folder(folder: Path, name: str) -> Iterator[Path]:
    """Yield a new folder for intermediate results, and remove it at the end of the block.

    Scratch folders that killed processes left in ``folder`` are removed as well. Those of running processes are kept: a
    file beside each folder is locked by its process.
    """
    remove_abandoned(folder.glob(f".{glob.escape(name)}.{_RANDOM_PATTERN}.lock"), _remove_scratch)
    lock = folder / f".{name}.{uuid.uuid4().hex}.lock"
    descriptor = create_locked(lock)
    try:
        scratch = lock.with_suffix("")
        scratch.mkdir()
        yield scratch
    finally:
        _remove_scratch(lock)
        _close(descriptor)


def _remove_scratch(lock: Path) -> None:
    # A shard that still runs on another machine could add files while the folder is emptied. Once the folder is
    # renamed, the shard does not find it any more.
    removed = lock.with_suffix(".removed")
    with suppress(FileNotFoundError):
        lock.with_suffix("").rename(removed)
    for _ in range(2):  # the shard may have been about to create a file in it
        shutil.rmtree(removed, ignore_errors=True)
    if not removed.exists():  # otherwise the next run finds it by its lock, and removes it
        _remove_files([lock])


def write_array(path: Path, array: np.ndarray) -> None:
    """Write the raw bytes of an array atomically to a scratch folder, whose files need not survive a power failure."""
    with atomic_write(path, durable=False) as temporary:
        temporary.write_bytes(np.ascontiguousarray(array).data)  # tofile does not say why it fails


def open_binary(path: Path) -> IO[bytes]:
    """Open a file for reading; a file whose name ends in ``.gz`` is decompressed."""
    return cast(IO[bytes], gzip.open(path, "rb")) if path.suffix == ".gz" else open(path, "rb")


def iterate_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 text file, without a byte order mark and the white space around them; ``.gz`` files are
    decompressed.

    Raises:
        UserError: the file cannot be read, is damaged, or is not UTF-8
    """
    number = 0
    try:
        with open_binary(path) as file:
            for number, content in enumerate(file, 1):
                text = content.decode("utf-8-sig" if number == 1 else "utf-8")
                lines = LINE_END.split(text)
                yield from map(str.strip, lines if lines[-1] else lines[:-1])
    except FileNotFoundError as error:
        raise UserError(f"{path} not found: check the path") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path} is not a complete gzip file ({error}): make it again") from error
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; name a text file") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}, line {number}: not text in UTF-8 ({error.reason}); convert the file") from error


def read_lines(path: Path) -> List[str]:
    """As :func:`iterate_lines`, all at once."""
    return list(iterate_lines(path))


@contextmanager
def clean_up_on_failure() -> Iterator[None]:
    """Make SIGTERM, SIGHUP and file system errors end a command cleanly.

    Inside the block the signals raise SystemExit, so that context managers remove incomplete files.

    Raises:
        UserError: instead of an OSError of the block
    """
    signals = [signum for signum in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(signum) != signal.SIG_IGN]
    previous_handlers = {signum: signal.signal(signum, _exit_by_signal) for signum in signals}
    try:
        yield
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        raise UserError(f"{place}{error.strerror or error}; incomplete output files were removed") from error
    finally:
        for signum, handler in previous_handlers.items():
            signal.signal(signum, handler)


def _exit_by_signal(signum: int, frame: object) -> None:
    sys.exit(128 + signum)
