"""What `run` says at its end: what it cost, where the answers are, and what to do next."""

from collections.abc import Callable
from pathlib import Path

from results import reporting
from results.folder import OutputFolder
from tokenmill import view
from tokenmill.runfile import RunFile
from tokenmill.state import Status

_WIDTH = 38


def tell_next(file: RunFile, final: Status, say: Callable[[str], None], *, interrupted: bool) -> None:
    """What was wasted, one answer, and the next commands."""
    path, tokenmill = file.path, view.program("tokenmill")
    if final.wasted_tokens:
        say(f"{view.tokens(final.wasted_tokens)} tokens were generated and not kept")
    answers = [file.output / dataset.name / "raw_responses.jsonl" for dataset in final.datasets]
    if written := [answer for answer in answers if answer.exists() and answer.stat().st_size]:
        say(f"\nthe answers, a file for each dataset: {file.output}/*/raw_responses.jsonl")
        if record := view.record(written[-1]):
            say(f"one of them: {record}")
    if final.sglang == "simulated":
        say("these come from the simulated SGLang: name real servers in [sglang] servers of the run file")
    say("\nnext:")
    if interrupted:
        say(_line("go on where it stopped", f"{tokenmill} run {path}"))
    elif final.sglang == "simulated":
        say(_line("your own prompts", f"{tokenmill} init DIR writes a run file for the files in it"))
    say(_line("watch it from a second terminal", f"{tokenmill} status {path} --watch"))
    say(_line("check every count against the files", f"{tokenmill} verify {path}"))
    say(_line("training files of the answers", f"{tokenmill} export {path} --format specforge"))


def write_report(file: RunFile, final: Status, say: Callable[[str], None], *, worked: bool) -> None:
    """report.html, which reads every answer once more: left as it is where no worker ran and nothing is newer."""
    try:
        caps = {dataset.name: dataset.cap for dataset in final.datasets}
        path = file.output / reporting.NAME
        if worked or not _is_newest(path, file):
            path = reporting.write(file.config, caps=caps, simulated=final.sglang == "simulated")
    except Exception as error:  # the run has done its work: whatever is wrong here must not say otherwise
        say(_line("the report could not be written", str(error)))
    else:
        say(_line("lengths, times, servers, rejects", str(path)))


def _is_newest(report: Path, file: RunFile) -> bool:
    """Whether nothing that the report shows was written since; caps and counts of prompts stand in folder.json."""
    folder = OutputFolder(file.output)
    shown = [file.path, folder.own / "folder.json"]
    for dataset in file.config.datasets:
        shown += [folder.answers(dataset.name), folder.rejected(dataset.name)]
    try:
        written = report.stat().st_mtime_ns
        return all(path.stat().st_mtime_ns < written for path in shown if path.exists())
    except OSError:
        return False


def _line(what: str, how: str) -> str:
    return f"  {what + ':':{_WIDTH}}{how}"
