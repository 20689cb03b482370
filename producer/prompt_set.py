"""What the loop needs of a dataset's prompts, whatever holds them, and where the run's prompts come from."""

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Protocol

import msgspec

from producer.defects import Defect
from producer.errors import PromptsProblem
from producer.files import PromptSource, Row, find
from producer.prompts import to_payload
from workers.chat import ChatTokenizer
from workers.contracts import DatasetConfig, Payload, RunConfig, TokenizerFacts
from workers.pieces import digest_of, lay_down

log = logging.getLogger("tokenmill.producer")

OF_TOKENIZER = tuple(name for name in TokenizerFacts.__struct_fields__ if name != "pieces_digest")


class PromptSet(Protocol):
    """One dataset's prompts."""

    @property
    def count(self) -> int | None:
        """How many there are; None while that is unknown."""
        ...

    def rows(self) -> Iterator[tuple[str, Any]]:
        """One pass over them, in the order in which they are to be queued: each one's id and its row."""
        ...

    def build(self, prompt_id: str, row: Any) -> Payload | Defect:
        """The job of a row, or why it can never work."""
        ...

    def shown(self, row: Any) -> Any:
        """The row as rejected.jsonl keeps it."""
        ...


class Library(Protocol):
    """Where a run's prompts come from."""

    def check(self, datasets: list[DatasetConfig]) -> None:
        """Raise at once what would be found late: opening a large dataset takes a while."""
        ...

    def tokenizer_facts(self) -> dict[str, Any]:
        """What workers must know of the tokenizer: the fields of `TokenizerFacts`."""
        ...

    def pieces(self) -> bytes | None:
        """What the facts' `pieces_digest` names; None where the tokenizer has none."""
        ...

    def open(self, dataset: DatasetConfig) -> PromptSet: ...


class FilePrompts:
    """The prompts of files. `tokenizer` is asked for when the first is built: most of a start goes into loading it."""

    def __init__(self, dataset: DatasetConfig, source: PromptSource, tokenizer: Callable[[], ChatTokenizer]) -> None:
        self._dataset = dataset
        self._source = source
        self._tokenizer = tokenizer

    @property
    def count(self) -> int | None:
        return len(self._source)

    def rows(self) -> Iterator[tuple[str, Row]]:
        # Not a generator: the source looks for changed files, and so counts anew, when the pass begins.
        return map(_with_id, iter(self._source))

    def build(self, prompt_id: str, row: Row) -> Payload | Defect:
        if row.defect is not None:
            return Defect(row.defect.reason, f"{row.where}: {row.defect.detail}")
        tokenizer = self._tokenizer()
        return to_payload(self._dataset, prompt_id, row.value, tokenizer, tokenizer.context_length)

    def shown(self, row: Row) -> Any:
        return row.shown


def _with_id(row: Row) -> tuple[str, Row]:
    return row.id, row


class Files:
    """The prompt files that a run file names, rendered with its tokenizer.

    The tokenizer is loaded for rows of ready ids too: its vocabulary bounds them, and an id beyond that
    ends a real server's process.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._tokenizer: ChatTokenizer | None = None

    @property
    def tokenizer(self) -> ChatTokenizer:
        if self._tokenizer is None:
            self._tokenizer = ChatTokenizer.load(
                self._config.tokenizer,
                self._config.chat_template_kwargs,
                special_tokens_in_text=self._config.special_tokens_in_text,
            )
            if self._tokenizer.has_template:
                self._tokenizer.check()
        return self._tokenizer

    def check(self, datasets: list[DatasetConfig]) -> None:
        for dataset in datasets:
            with _of(dataset):
                find(dataset.prompts)

    def tokenizer_facts(self) -> dict[str, Any]:
        packed = self.pieces()
        facts = {name: msgspec.to_builtins(getattr(self.tokenizer, name)) for name in OF_TOKENIZER}
        return {**facts, "pieces_digest": "" if packed is None else digest_of(packed)}

    def pieces(self) -> bytes | None:
        return self._laid

    @cached_property
    def _laid(self) -> bytes | None:
        backend = self.tokenizer.backend
        return None if backend is None else lay_down(backend, self.tokenizer.thinking)

    def open(self, dataset: DatasetConfig) -> FilePrompts:
        with _of(dataset):
            source = PromptSource.open(dataset.prompts, self._config.seed, dataset.fields)
        log.info("%s: %s prompts in %s files", dataset.name, f"{len(source):,}", f"{len(source.paths):,}")
        if source.note:
            log.warning("%s", source.note)
        return FilePrompts(dataset, source, lambda: self.tokenizer)


@contextmanager
def _of(dataset: DatasetConfig) -> Generator[None]:
    """Ten datasets have ten files: a sentence about one of them names the dataset too."""
    try:
        yield
    except PromptsProblem as problem:
        raise PromptsProblem(f"dataset {dataset.name}: {problem}") from problem
