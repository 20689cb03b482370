"""The version of what the parts say to each other through Redis: keys, scripts, jobs and results.

The collector writes it into the run's entry. A part of another version is refused before it changes
anything: producers and workers read the entry when they join, and the scripts that take in or hand out
jobs look again at each call, since a part may outlive a `reset` and the next version's start.
"""

import functools
from importlib import metadata

from budget.errors import Refused

# One more with every change after which an older part would misread a newer one, or the other way round.
PROTOCOL = 2
# What a script answers with, before the run's protocol and release.
OTHER = "OTHERPROTOCOL"


class OtherProtocol(Refused):
    """The run in this Redis is of another version of Tokenmill."""


@functools.cache
def release() -> str:
    """This Tokenmill's own release, which people know it by."""
    try:
        return metadata.version("tokenmill")
    except metadata.PackageNotFoundError:
        return "unknown"


def other(protocol: str, of_release: str, own: int = PROTOCOL) -> OtherProtocol:
    """The refusal, which names both and the mend."""
    return OtherProtocol(
        f"the run in this Redis was started by Tokenmill {of_release} (protocol {protocol}), and this is Tokenmill "
        f"{release()} (protocol {own}): install the run's version here, or let the run end and free the database with "
        f"`tokenmill reset` (the files stay)"
    )


def of_script(answer: str) -> OtherProtocol:
    """The refusal that a script answered with."""
    _, protocol, *rest = answer.split(" ", 2)
    return other(protocol, rest[0] if rest else "unknown")
