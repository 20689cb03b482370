"""What Python's search for unreachable cycles costs a process that handles a thousand prompts a second."""

import gc

# Objects made between two searches. Prompts and answers make no cycles, so with Python's own few hundred the search
# is seven per cent of a worker's work, and as much of the producer's.
OBJECTS = 10_000


def search_less() -> None:
    """Search seldom, and not among what is there by now: it lives as long as the process does."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS)
