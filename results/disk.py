"""Writing so that it is still there after a power cut, and what the disk's errors mean.

A file's bytes are safe after its fsync; its name is safe after its folder's. Whatever the disk
refuses becomes one sentence here, once.
"""

import errno
import os
import stat
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path

from results.errors import BadFolder, DiskFault, NotWritable, ResultsError


def fault(path: Path, error: OSError) -> ResultsError:
    """The sentence for what the disk said about `path`."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFault(
            f"cannot write {path}: the disk at {_mount(path)} is full; free some space and run the job again, "
            f"nothing is lost"
        )
    if error.errno == errno.EFBIG:
        return DiskFault(
            f"cannot write {path}: it may not grow any further (a limit of `ulimit -f` or of the disk at "
            f"{_mount(path)}); raise it and run the job again, nothing is lost"
        )
    if error.errno == errno.EROFS:
        return NotWritable(
            f"cannot write {path}: the disk at {_mount(path)} is mounted read-only; mount it writable and run the "
            f"job again"
        )
    if error.errno in (errno.EISDIR, errno.ENOTDIR):
        return BadFolder(f"{path} should be a file, and a folder is in its place: move it away and run the job again")
    if error.errno in (errno.EACCES, errno.EPERM):
        return NotWritable(
            f"cannot write {path}: user {os.geteuid()} may not; make it writable for that user and run the job again"
        )
    return DiskFault(
        f"cannot read or write {path}: {error.strerror or error} (disk at {_mount(path)}); check the disk and run the "
        f"job again, nothing is lost"
    )


@contextmanager
def translated(path: Path) -> Generator[None]:
    """Turn the disk's errors about `path` into one sentence."""
    try:
        yield
    except OSError as error:
        raise fault(path, error) from error


def check_regular(path: Path) -> None:
    """Refuse what is neither a file nor nothing: opening a named pipe would wait for ever.

    Raises:
        BadFolder: a folder, a pipe or a device is there.
    """
    with suppress(OSError):
        if not stat.S_ISREG(path.stat().st_mode):
            raise BadFolder(
                f"{path} should be a file, and is a folder, a pipe or a device: move it away and run the job again"
            )


def sync_folder(folder: Path) -> None:
    """Make the names in a folder safe: a new file's fsync does not say that its name is on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Some network file systems have no fsync for folders; their names are safe when the server answers.
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(path: Path, chunks: Iterable[bytes]) -> None:
    """Write a file as a whole: whoever reads it finds the old one or the new one, never a part.

    Raises:
        NotWritable, DiskFault: the old file is untouched.
    """
    beside = path.with_name(f".{path.name}.new")
    with translated(path):
        try:
            with beside.open("wb") as file:
                file.writelines(chunks)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        except OSError:
            with suppress(OSError):
                beside.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def _mount(path: Path) -> Path:
    for folder in (path, *path.absolute().parents):
        with suppress(OSError):
            if folder.is_mount():
                return folder
    return Path("/")
