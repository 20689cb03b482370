"""How a run file that is right becomes the run's configuration: defaults, overrides, paths, caps."""

from pathlib import Path

import pytest

from tokenmill import runfile
from tokenmill.runfile import RunFileProblem
from workers.contracts import RunConfig, Timing, fingerprint

LEAST = """
[run]
max_tokens_per_dataset = 1000
[model]
tokenizer = "some/model"
[[dataset]]
name = "A1"
prompts = "prompts/a1.jsonl"
"""


def write(folder: Path, text: str = LEAST) -> Path:
    file = folder / "run.toml"
    file.write_text(text)
    return file


def load(folder: Path, *overrides: str, text: str = LEAST) -> RunConfig:
    return runfile.load(write(folder, text), overrides).config


def test_the_least_run_file_has_sensible_defaults(tmp_path: Path) -> None:
    config = load(tmp_path)
    assert (config.name, config.admission, config.truncated, config.seed) == ("run", "forecast", "keep", 0)
    assert (config.servers, config.concurrency, config.timing) == ([], 64, Timing())
    assert (config.max_hours, config.max_tokens_total) == (None, None)
    dataset = config.dataset("A1")
    assert (dataset.max_tokens, dataset.max_samples) == (1000, None)
    assert dataset.sampling == {"max_new_tokens": 16_384}


def test_paths_count_from_the_run_files_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tok").mkdir()
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    text = LEAST.replace("some/model", "tok")
    for prompts, found in (
        ("prompts/*.jsonl.gz", str(tmp_path / "prompts/*.jsonl.gz")),
        ("/data/a.jsonl", "/data/a.jsonl"),
        ("~/a.jsonl", str(home / "a.jsonl")),
        ("hf://org/set", "hf://org/set"),
    ):
        config = load(tmp_path, text=text.replace("prompts/a1.jsonl", prompts))
        assert config.dataset("A1").prompts == found
    assert config.tokenizer == str(tmp_path / "tok")
    assert config.output == str(tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    assert runfile.load("run.toml").config.output == str(tmp_path / "out")


def test_a_tokenizer_that_is_no_folder_here_is_a_name_on_the_hub(tmp_path: Path) -> None:
    assert load(tmp_path).tokenizer == "some/model"
    for path in ("./tok", "/models/tok", "~/tok"):
        assert load(tmp_path, f"model.tokenizer={path}").tokenizer.startswith("/")


def test_a_datasets_own_values_go_over_the_runs(tmp_path: Path) -> None:
    text = LEAST + "max_tokens = 5\nmax_samples = 7\nsampling = { temperature = 0.7 }\n[sampling]\ntemperature = 1.0\n"
    text += 'top_p = 0.9\nmax_new_tokens = 10\n[[dataset]]\nname = "B2"\nprompts = "b"\n'
    config = load(tmp_path, text=text)
    a1, b2 = config.datasets
    assert (a1.max_tokens, a1.max_samples) == (5, 7)
    assert a1.sampling == {"temperature": 0.7, "top_p": 0.9, "max_new_tokens": 10}
    assert b2.sampling == {"temperature": 1.0, "top_p": 0.9, "max_new_tokens": 10}
    assert b2.max_tokens == 1000


@pytest.mark.parametrize("cap", [0, 1, 10**12])
def test_any_cap_of_0_or_more_is_taken(tmp_path: Path, cap: int) -> None:
    assert load(tmp_path, f"dataset.A1.max_tokens={cap}").dataset("A1").max_tokens == cap


def test_no_cap_is_the_word_none(tmp_path: Path) -> None:
    file = runfile.load(write(tmp_path), ["dataset.A1.max_tokens=none"])
    assert file.caps() == {"A1": None}
    assert load(tmp_path, 'run.max_tokens_per_dataset="none"').dataset("A1").max_tokens is None


def test_strict_takes_a_cap_of_0_one_worst_case_or_none(tmp_path: Path) -> None:
    for cap in ("0", "100", "none"):
        load(tmp_path, 'run.admission="strict"', "sampling.max_new_tokens=100", f"dataset.A1.max_tokens={cap}")
    with pytest.raises(RunFileProblem, match="at least one worst case"):
        load(tmp_path, 'run.admission="strict"', "sampling.max_new_tokens=100", "dataset.A1.max_tokens=99")


def test_seed_false_keeps_the_files_order(tmp_path: Path) -> None:
    assert load(tmp_path, "run.seed=false").seed is None
    assert load(tmp_path, "run.seed=42").seed == 42
    assert load(tmp_path, "run.seed=true").seed == 1


def test_overrides_set_tables_datasets_and_what_was_absent(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        "run.name=kimi k2",
        "run.max_hours = 1.5",
        'sglang.servers=["http://gpu0:30000/", "https://gpu1"]',
        "timing.lease_ms=1_000",
        "timing.renew_ms=100",
        "model.chat_template_kwargs.enable_thinking=true",
        "dataset.A1.sampling.top_k=5",
    )
    assert (config.name, config.max_hours) == ("kimi k2", 1.5)
    assert config.servers == ["http://gpu0:30000", "https://gpu1"]
    assert (config.timing.lease_ms, config.timing.renew_ms) == (1000, 100)
    assert config.chat_template_kwargs == {"enable_thinking": True}
    assert config.dataset("A1").sampling == {"top_k": 5, "max_new_tokens": 16_384}


def test_the_last_override_counts(tmp_path: Path) -> None:
    assert load(tmp_path, "run.name=a", "run.name=b").name == "b"


def test_a_run_that_was_moved_as_a_whole_keeps_its_fingerprint(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    prints: list[dict[str, str]] = []
    for folder in (here, there):
        folder.mkdir()
        (folder / "tok").mkdir()
        prints.append(fingerprint(load(folder, text=LEAST.replace("some/model", "tok")), "A1"))
    assert prints[0] == prints[1]
    assert prints[0]["prompts"] == "prompts/a1.jsonl" and prints[0]["tokenizer"] == "tok"


def test_caps_and_servers_are_no_part_of_the_fingerprint_and_sampling_is(tmp_path: Path) -> None:
    before = fingerprint(load(tmp_path), "A1")
    assert fingerprint(load(tmp_path, "dataset.A1.max_tokens=5", 'sglang.servers=["http://x"]'), "A1") == before
    assert fingerprint(load(tmp_path, "sampling.temperature=0.5"), "A1") != before


def test_the_quickstart_is_a_run_file() -> None:
    file = runfile.load(Path(__file__).parents[3] / "examples" / "quickstart.toml")
    assert len(file.config.datasets) == 10
    assert file.config.dataset("A1_agent_traces").max_tokens == 60_000
    assert set(file.simulator["lengths"]) == {dataset.name for dataset in file.config.datasets}
