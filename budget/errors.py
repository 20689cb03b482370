"""What can go wrong, as sentences for the person who runs the job.

`Problem` is the root of every package's own exceptions; the command line prints its text as one
sentence and ends with its exit code. Exceptions of libraries are translated into one of these where
they are first met, so nothing above has to know redis-py's, msgspec's or httpx' exceptions.

    Problem
    ├── UserProblem (2)      something the user must change: usage, run file, prompts, model, sampling
    ├── Interrupted (3)      stopped or out of time: run again to continue
    ├── Refused (4)          another run, producer or collector owns it, or Redis is unsafe
    ├── OutsideFault (5)     Redis or servers unreachable, key refused, disk full or not writable
    └── OwnFault (5)         nobody expected it: a fault of Tokenmill's own
"""

from enum import IntEnum
from typing import ClassVar


class Exit(IntEnum):
    """The documented exit codes of every command."""

    DONE = 0
    DIFFERENCE = 1
    USER = 2
    INTERRUPTED = 3
    REFUSED = 4
    OUTSIDE = 5


class Problem(Exception):
    """One clear sentence that names the thing and the mend, and the exit code that goes with it."""

    exit_code: ClassVar[Exit] = Exit.OUTSIDE


class UserProblem(Problem):
    exit_code = Exit.USER


class Interrupted(Problem):
    exit_code = Exit.INTERRUPTED


class Refused(Problem):
    exit_code = Exit.REFUSED


class OutsideFault(Problem):
    exit_code = Exit.OUTSIDE


class OwnFault(Problem):
    """An exception that nobody expected. Whoever makes one logs the whole of it for `--verbose`."""

    exit_code = Exit.OUTSIDE

    def __init__(self, error: BaseException) -> None:
        super().__init__(
            f"a fault in Tokenmill itself ({type(error).__name__}: {error}); nothing is lost, run the same command "
            f"again (with --verbose for the whole fault)"
        )
