"""The run file: TOML that a person writes, checked key by key, resolved into a `RunConfig`.

Every mistake is one sentence that names the key and the mend. Unknown keys are errors: a mistyped
`max_token` that is silently ignored costs a day of GPU time.
"""

import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast, get_type_hints

import msgspec

from budget.environment import MOST_IN_FLIGHT
from budget.errors import UserProblem
from producer.fields import mistake
from tokenmill import runvalues, sampling
from workers import addresses
from workers.contracts import Admission, DatasetConfig, History, RunConfig, Timing

NAME = re.compile(r"[A-Za-z0-9_-]+")

Cap = int | Literal["none"]


class RunFileProblem(UserProblem):
    """The run file is not as it must be."""


class _Run(msgspec.Struct, kw_only=True):
    name: str = "run"
    output: str = "out"
    max_tokens_per_dataset: Cap | None = None
    max_tokens_total: int | None = None
    max_hours: float | None = None
    max_waiting_results: int = 20_000
    admission: Admission = "forecast"
    seed: int | bool = 0
    truncated: Literal["keep", "reject"] = "keep"


class _Model(msgspec.Struct, kw_only=True):
    tokenizer: str
    chat_template_kwargs: dict[str, Any] = {}
    special_tokens_in_text: bool = False


class _Sglang(msgspec.Struct, kw_only=True):
    servers: list[str] = []
    any_weights: bool = False
    concurrency: int = 64
    answer_s: float | None = None


class _Dataset(msgspec.Struct, kw_only=True):
    name: str
    prompts: str
    max_tokens: Cap | None = None
    max_samples: int | None = None
    sampling: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    history: History = "turns"


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """A checked run file. `simulator` holds the simulated server's own settings, as they stand there."""

    path: Path
    config: RunConfig
    simulator: dict[str, Any] = {}

    @property
    def output(self) -> Path:
        return Path(self.config.output)

    def caps(self) -> dict[str, int | None]:
        return {dataset.name: dataset.max_tokens for dataset in self.config.datasets}


_TABLES: dict[str, type[msgspec.Struct]] = {"run": _Run, "model": _Model, "sglang": _Sglang, "timing": Timing}
_KNOWN = [*_TABLES, "sampling", "dataset", "simulator"]


def load(path: str | Path, overrides: Sequence[str] = ()) -> RunFile:
    """Read and check a run file.

    Args:
        path: the TOML file; paths in it count from its folder.
        overrides: `table.key=value` each (a dataset's: `dataset.NAME.key=value`), the value as TOML or plain text.

    Raises:
        RunFileProblem: anything in it is wrong, in one sentence.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RunFileProblem(
            f"there is no run file {file}: give the path of one, such as examples/quickstart.toml"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RunFileProblem(f"the run file {file} cannot be read: {error}") from error
    try:
        tables: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a TOMLDecodeError, or a number of thousands of digits
        raise RunFileProblem(f"{file} is not TOML: {error}") from error
    for override in overrides:
        _override(tables, override, file)
    _refuse(runvalues.strange(tables), file)
    simulator: Any = tables.get("simulator", {})
    if not isinstance(simulator, dict):
        raise RunFileProblem(f"{file}: [simulator] must be a table")
    return RunFile(path=file, config=_resolve(tables, file), simulator=cast(dict[str, Any], simulator))


def _refuse(found: str, file: Path) -> None:
    if found:
        raise RunFileProblem(f"{file}: {found}")


def _override(tables: dict[str, Any], override: str, file: Path) -> None:
    name, separator, text = override.partition("=")
    parts = name.strip().split(".")
    if not separator or len(parts) < 2 or not all(parts):
        raise RunFileProblem(f"--set {override!r} is not TABLE.KEY=VALUE, such as run.max_hours=2")
    try:
        value: Any = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text.strip()
    if parts[0] == "dataset":
        entries = _entries(tables, file)
        found = [entry for entry in entries if entry.get("name") == parts[1]]
        if not found or len(parts) < 3:
            raise RunFileProblem(f"--set {override!r} names no dataset of the run file: write dataset.NAME.KEY=VALUE")
        target, keys = found[0], parts[2:]
    else:
        target, keys = tables, parts
    for key in keys[:-1]:
        below: Any = target.setdefault(key, {})
        if not isinstance(below, dict):
            raise RunFileProblem(f"--set {override!r}: {key} is a value, not a table, so nothing can be set in it")
        target = cast(dict[str, Any], below)
    target[keys[-1]] = value


def _resolve(tables: dict[str, Any], file: Path) -> RunConfig:
    refuse_unknown(tables, _KNOWN, "", file)
    run = cast(_Run, _table(tables, "run", file))
    model = cast(_Model, _table(tables, "model", file))
    sglang = cast(_Sglang, _table(tables, "sglang", file))
    timing = cast(Timing, _table(tables, "timing", file))
    _refuse(
        runvalues.bad_words(
            {"name in [run]": run.name, "output in [run]": run.output, "tokenizer in [model]": model.tokenizer}
        ),
        file,
    )
    base = file.resolve().parent
    defaults = _sampling(tables.get("sampling", {}), "[sampling]", file)
    datasets = [
        _dataset(entry, number, run, defaults, base, file) for number, entry in enumerate(_entries(tables, file), 1)
    ]
    names = [dataset.name for dataset in datasets]
    for name in names:
        if names.count(name) > 1:
            raise RunFileProblem(f"{file} has two datasets named {name}: give each a name of its own")
    output = _under(base, run.output)
    _refuse(runvalues.bad_output(output), file)
    config = RunConfig(
        name=run.name,
        base=str(base),
        output=str(output),
        tokenizer=_tokenizer(base, model.tokenizer),
        datasets=datasets,
        admission=run.admission,
        max_tokens_total=run.max_tokens_total,
        max_hours=run.max_hours,
        max_waiting_results=run.max_waiting_results,
        seed=None if run.seed is False else int(run.seed),
        truncated=run.truncated,
        chat_template_kwargs=model.chat_template_kwargs,
        special_tokens_in_text=model.special_tokens_in_text,
        servers=_servers(sglang.servers, file),
        any_weights=sglang.any_weights,
        concurrency=sglang.concurrency,
        answer_s=sglang.answer_s,
        timing=timing,
    )
    _check_numbers(config, file)
    return config


def _entries(tables: dict[str, Any], file: Path) -> list[dict[str, Any]]:
    entries = tables.get("dataset")
    if not entries:
        raise RunFileProblem(f"{file} has no [[dataset]]: add one with its name and its prompts")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in cast(list[Any], entries)):
        raise RunFileProblem(f"{file}: write [[dataset]] with two brackets, one such table for each dataset")
    return cast(list[dict[str, Any]], entries)


def _table(tables: dict[str, Any], name: str, file: Path) -> msgspec.Struct:
    return _struct(tables.get(name, {}), _TABLES[name], f"[{name}]", file)


def _struct(value: Any, kind: type[msgspec.Struct], where: str, file: Path) -> msgspec.Struct:
    if not isinstance(value, dict):
        raise RunFileProblem(f"{file}: {where} must be a table")
    refuse_unknown(cast(dict[str, Any], value), kind.__struct_fields__, where, file)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$.")
        key = place.rstrip("`")
        place = f"{key} in {where}" if key else where
        if mend := runvalues.wanted(get_type_hints(kind).get(key)):
            raise RunFileProblem(f"{file}: {place} is {runvalues.short(cast(Any, value)[key])}: give {mend}") from error
        raise RunFileProblem(f"{file}: {place}: {_plain(reason)}") from error


def _plain(reason: str) -> str:
    missing = re.fullmatch(r"Object missing required field `(\w+)`", reason)
    return f"{missing[1]} is missing" if missing else reason[0].lower() + reason[1:]


def refuse_unknown(table: Mapping[str, Any], known: Iterable[str], where: str, file: Path) -> None:
    """A key that nobody reads is an error that names the nearest one.

    Raises:
        RunFileProblem: there is one.
    """
    _refuse(runvalues.unknown(table, known, where or "the file"), file)


def _sampling(value: Any, where: str, file: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RunFileProblem(f"{file}: {where} must be a table of SGLang's sampling parameters")
    table = cast(dict[str, Any], value)
    _refuse(sampling.mistake(table, where), file)
    return table


def _dataset(
    entry: dict[str, Any], number: int, run: _Run, defaults: dict[str, Any], base: Path, file: Path
) -> DatasetConfig:
    where = f"[[dataset]] {entry.get('name') or number}"
    table = cast(_Dataset, _struct(entry, _Dataset, where, file))
    if not NAME.fullmatch(table.name):
        raise RunFileProblem(f"{file}: {table.name!r} cannot name a dataset: use letters, digits, _ and - only")
    if len(table.name) > runvalues.LONGEST_DATASET_NAME:
        raise RunFileProblem(
            f"{file}: a dataset's name can have {runvalues.LONGEST_DATASET_NAME} characters, not {len(table.name)}"
        )
    _refuse(runvalues.bad_words({f"prompts of {where}": table.prompts}), file)
    cap = table.max_tokens if table.max_tokens is not None else run.max_tokens_per_dataset
    if cap is None:
        raise RunFileProblem(
            f'{file}: {where} has no budget: set its max_tokens, or max_tokens_per_dataset in [run] ("none": no cap)'
        )
    if cap != "none" and cap < 0:
        raise RunFileProblem(f'{file}: the cap of {where} is {cap}: it must be 0 or more tokens, or "none"')
    own = {**defaults, **_sampling(table.sampling, f"sampling of {where}", file)}
    own.setdefault("max_new_tokens", sampling.DEFAULT_MAX_NEW_TOKENS)
    _refuse(sampling.mistake(own, f"sampling of {where}"), file)
    if run.admission == "strict" and cap != "none" and 0 < cap < own["max_new_tokens"]:
        raise RunFileProblem(
            f'{file}: under admission "strict" the cap of {where} ({cap}) must be at least one worst case '
            f'(max_new_tokens, {own["max_new_tokens"]}): raise the cap, lower max_new_tokens, or use "forecast"'
        )
    if table.max_samples is not None and table.max_samples < 0:
        raise RunFileProblem(f"{file}: max_samples of {where} is {table.max_samples}: it must be 0 or more")
    if found := mistake(table.fields):
        raise RunFileProblem(f"{file}: fields of {where}: {found}")
    prompts = table.prompts if "://" in table.prompts else str(_under(base, table.prompts))
    return DatasetConfig(
        name=table.name,
        prompts=prompts,
        max_tokens=None if cap == "none" else cap,
        max_samples=table.max_samples,
        sampling=own,
        fields=table.fields,
        history=table.history,
    )


def _check_numbers(config: RunConfig, file: Path) -> None:
    limits: dict[str, tuple[float | None, float, float]] = {
        "concurrency in [sglang]": (config.concurrency, 0, MOST_IN_FLIGHT),
        "answer_s in [sglang]": (config.answer_s, 0, runvalues.LONGEST_HOURS * 3600),
        "max_hours in [run]": (config.max_hours, 0, runvalues.LONGEST_HOURS),
        "max_waiting_results in [run]": (config.max_waiting_results, 0, runvalues.LARGEST_WHOLE),
    }
    for name in config.timing.__struct_fields__:
        limits[f"{name} in [timing]"] = (getattr(config.timing, name), 0, runvalues.LONGEST_MS)
    _refuse(runvalues.out_of_range(limits), file)
    if config.max_tokens_total is not None and config.max_tokens_total < 0:
        raise RunFileProblem(f"{file}: max_tokens_total in [run] is {config.max_tokens_total}: it must be 0 or more")
    if config.timing.renew_ms * 2 > config.timing.lease_ms:
        raise RunFileProblem(f"{file}: renew_ms in [timing] must be at most half of lease_ms, or leases run out")


def _servers(urls: list[str], file: Path) -> list[str]:
    try:
        return addresses.checked(urls, "[sglang] servers")
    except addresses.BadAddress as error:
        raise RunFileProblem(f"{file}: {error}") from error


def _under(base: Path, path: str) -> Path:
    try:
        return base / Path(path).expanduser()
    except RuntimeError:  # ~NAME of nobody
        return base / path


def _tokenizer(base: Path, name: str) -> str:
    """A folder beside the run file if there is one, else a name on the hub."""
    local = _under(base, name)
    return str(local) if os.path.lexists(local) or name.startswith((".", "/", "~")) else name
