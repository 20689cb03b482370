"""What a run says and writes at its end."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tokenmill import farewell, runfile

RUN = """
[run]
name = "r"
output = "out"
max_tokens_per_dataset = 10
[model]
tokenizer = "t"
[sampling]
max_new_tokens = 5
[[dataset]]
name = "A"
prompts = "a.jsonl"
"""


def test_the_report_is_made_anew_where_something_was_done_or_is_newer(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    (tmp_path / "a.jsonl").write_text('{"prompt": "x"}\n')
    file = runfile.load(path)
    answers = file.output / "A" / "raw_responses.jsonl"
    answers.parent.mkdir(parents=True)
    answers.touch()
    report = file.output / "report.html"
    final: Any = SimpleNamespace(datasets=[], sglang="real")

    def is_kept(worked: bool, newer: Path | None = None) -> bool:
        """Write it, mark what was written, date all files before it (one after it), and write it once more."""
        said: list[str] = []
        farewell.write_report(file, final, said.append, worked=True)
        report.write_bytes(report.read_bytes() + b"<!-- marked -->")
        for held in (path, answers):
            os.utime(held, (1000, 3000 if held == newer else 1000))
        os.utime(report, (2000, 2000))
        farewell.write_report(file, final, said.append, worked=worked)
        assert said[0] == said[1] and said[1].endswith(str(report))
        return report.read_bytes().endswith(b"<!-- marked -->")

    assert is_kept(worked=False)
    assert not is_kept(worked=True)
    assert not is_kept(worked=False, newer=answers)
    assert not is_kept(worked=False, newer=path)
