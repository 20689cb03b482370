"""The command line: one command for each part of the job, the same exit codes everywhere.

A problem is one sentence on standard error. Heavy imports are made inside commands, so that
`tokenmill --help` and `tokenmill status` answer at once.
"""

import errno
import logging
import os
import sys
from typing import NoReturn

import click

from budget import plain
from budget.errors import Exit, Interrupted, OwnFault, Problem
from tokenmill import __version__, beginning, commands_changing, commands_looking, commands_parts, inspecting

log = logging.getLogger("tokenmill.run")

EPILOG = """Exit codes: 0 done, 1 a check found a difference, 2 something you must change, 3 interrupted or out of
time (run again to continue), 4 refused (another run owns it, or Redis is unsafe), 5 a fault outside."""


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="tokenmill")
def cli() -> None:
    """Make draft-model training data from the target model's own answers, to a budget of tokens per dataset.

    \b
    Everything on this machine:   tokenmill run RUN.toml
    Or in several terminals:      tokenmill collect RUN.toml
                                  tokenmill push RUN.toml
                                  tokenmill work RUN.toml -n 2
    """


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the shell's completion script.

    \b
    bash:  eval "$(tokenmill completion bash)"     in ~/.bashrc
    zsh:   eval "$(tokenmill completion zsh)"      in ~/.zshrc
    fish:  tokenmill completion fish > ~/.config/fish/completions/tokenmill.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "tokenmill", "_TOKENMILL_COMPLETE").source())


def _add_commands() -> None:
    from workers.simulator.__main__ import command

    for module in (commands_parts, commands_looking, commands_changing):
        for name in module.COMMANDS:
            cli.add_command(name)
    cli.add_command(command, "sim")
    cli.add_command(inspecting.command)
    cli.add_command(beginning.command)


_add_commands()


def _usage(error: click.ClickException) -> str:
    """What is wrong with the command line, as one sentence."""
    said = " ".join(error.format_message().split()).rstrip(".")
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{said} (see `{context.command_path} --help`)" if context is not None else said


def _discard_output() -> None:
    """What is still to be printed, which Python would try again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _own_fault(error: Exception) -> NoReturn:
    log.debug("the fault in full", exc_info=True)
    click.echo(f"tokenmill: {plain.one_line(str(OwnFault(error)))}", err=True)
    sys.exit(Exit.OUTSIDE)


def main() -> None:
    """The entry point: problems become one sentence and their exit code; never a traceback."""
    try:
        cli.main(prog_name="tokenmill", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(Exit.USER)
    except click.ClickException as error:
        click.echo(f"tokenmill: {plain.one_line(_usage(error))}", err=True)
        sys.exit(Exit.USER)
    except Interrupted as problem:
        click.echo(f"tokenmill: {plain.one_line(str(problem))}", err=True)
        sys.exit(Exit.INTERRUPTED)
    except Problem as problem:
        click.echo(f"tokenmill: {plain.one_line(str(problem))}", err=True)
        sys.exit(problem.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("tokenmill: interrupted; run the same command again to continue", err=True)
        sys.exit(Exit.INTERRUPTED)
    except BrokenPipeError:
        _discard_output()
        sys.exit(Exit.DONE)
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EIO):
            _own_fault(error)
        # All that is written to disks names its file; what is left is what we print.
        _discard_output()
        click.echo(f"tokenmill: standard output cannot be written ({error.strerror}): send it elsewhere", err=True)
        sys.exit(Exit.OUTSIDE)
    except Exception as error:  # the outermost boundary: a fault of ours still ends in a sentence
        _own_fault(error)
