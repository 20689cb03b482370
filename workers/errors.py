"""What can stop a worker, as sentences; see `budget.errors` for the exit codes."""

from budget.errors import OutsideFault, UserProblem


class RunFault(UserProblem):
    """The run itself is wrong (key, model, sampling parameters): no prompt can succeed until the user mends it."""


class KeyRefused(OutsideFault):
    """The server wants another API key."""


class ServerAway(OutsideFault):
    """No server can be reached."""


class WrongModel(RunFault):
    """The server serves another model than the tokenizer is for."""
