"""What the start of a worker does not load, since a fleet starts thousands of them."""

import subprocess
import sys


def test_a_worker_loads_no_tokenizer_and_no_terminal() -> None:
    program = (
        "import sys, workers.async_worker\n"
        "print(sorted({'transformers', 'tokenizers', 'rich', 'pygments'} & sys.modules.keys()))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
