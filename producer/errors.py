"""What can be wrong with the prompts as a whole; one bad row is a `Defect`, a value, and never stops a run."""

from budget.errors import UserProblem


class PromptsProblem(UserProblem):
    """A prompt file or pattern that cannot be used at all: the sentence names the path and the mend."""
