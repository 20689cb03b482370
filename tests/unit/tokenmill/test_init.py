"""A run file from a folder of prompt files."""

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from budget.errors import UserProblem
from tokenmill import beginning, runfile
from tokenmill.cli import cli

EXAMPLES = Path(__file__).parents[3] / "examples"


def prompts_in(folder: Path) -> Path:
    folder.mkdir()
    (folder / "B2 code.jsonl").write_text('{"prompt": "a"}\n{"prompt": ""}\n')
    (folder / "B2_code.csv").write_text("question,answer\n1+1?,2\n")
    (folder / "notes.json").write_text('[{"title": "no prompt"}]')
    (folder / "README.md").write_text("not prompts")
    (folder / ".hidden").write_text("x")
    return folder


def test_it_writes_a_run_file_that_can_be_run(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    tokenizer = str(EXAMPLES / "tokenizer")
    done = CliRunner().invoke(
        beginning.command, [str(prompts_in(tmp_path / "in")), "--output", str(file), "--tokenizer", tokenizer]
    )
    assert done.exit_code == 0, done.output
    found = runfile.load(file).config
    assert found.tokenizer == tokenizer and found.name == "in"
    assert [(dataset.name, Path(dataset.prompts).name) for dataset in found.datasets] == [
        ("B2_code", "B2 code.jsonl"),
        ("B2_code_2", "B2_code.csv"),
    ]
    text = file.read_text()
    assert "2 rows: prompt, 1 of the first 2 cannot be used" in text
    assert '# [[dataset]]\n# name = "notes"' in text  # no prompt in it: left out, and said why
    assert tomllib.loads(text)["dataset"][0]["prompts"] == "in/B2 code.jsonl"


def test_it_overwrites_nothing_and_says_what_is_missing(tmp_path: Path) -> None:
    folder = prompts_in(tmp_path / "in")
    (tmp_path / "there.toml").write_text("x")
    with pytest.raises(UserProblem, match="is there already"):
        beginning.write(folder, tmp_path / "there.toml", None)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserProblem, match="no prompt files"):
        beginning.write(tmp_path / "empty", tmp_path / "x.toml", None)
    with pytest.raises(UserProblem, match="not a folder"):
        beginning.write(tmp_path / "none", tmp_path / "x.toml", None)
    with pytest.raises(UserProblem, match="cannot be written"):
        beginning.write(folder, tmp_path / "no" / "x.toml", None)
    assert not (tmp_path / "x.toml").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_of_the_shell(shell: str) -> None:
    done = CliRunner().invoke(cli, ["completion", shell])
    assert done.exit_code == 0 and f"_TOKENMILL_COMPLETE={shell}_complete" in done.output


def test_completion_knows_the_commands() -> None:
    environment = {"_TOKENMILL_COMPLETE": "bash_complete", "COMP_WORDS": "tokenmill in", "COMP_CWORD": "1"}
    done = CliRunner().invoke(cli, [], env=environment, prog_name="tokenmill")
    assert {"plain,init", "plain,inspect"} <= set(done.output.splitlines()), json.dumps(done.output)
