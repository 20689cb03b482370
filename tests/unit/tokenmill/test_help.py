"""Every command's help has examples, and the examples are command lines that the command takes."""

import shlex
from collections.abc import Callable, Iterator

import click
import pytest

from tokenmill.cli import cli


def commands(group: click.Group, *path: str) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        yield " ".join((*path, name)), command
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)


COMMANDS = dict(commands(cli))


def examples(command: click.Command) -> list[list[str]]:
    """The arguments after `tokenmill` of each line that shows it, in an "Example" paragraph of the help."""
    assert command.help is not None
    lines = command.help.partition("Example")[2].splitlines()
    shown = [line for line in lines if "tokenmill " in line and line.startswith(" ")]
    return [shlex.split(line.partition("tokenmill ")[2]) for line in shown]


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"completion"}))
def test_its_examples_are_taken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By click, whole; what the commands would then do is left out."""
    found = examples(COMMANDS[name])
    assert found, f"{name} --help has no example"
    called: list[str] = []

    def noting(path: str) -> Callable[..., None]:
        return lambda *_arguments, **_options: called.append(path)

    for path, command in COMMANDS.items():
        monkeypatch.setattr(command, "callback", noting(path))
    for arguments in found:
        called.clear()
        cli.main(arguments, standalone_mode=False)
        assert name in called
