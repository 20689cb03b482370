"""Chat templates and token ids: the one module that imports transformers, and only when it is used.

What is trained on must be, token for token, what the target model was asked: so the template is applied
here, once, and servers get ids. `/generate` applies neither a template nor the model's own sampling
defaults, which is why those are read here too.

transformers is imported inside functions: it takes seconds, and only producers and multi-turn jobs need it.
"""

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from budget.errors import UserProblem
from workers.contracts import Message

# generation_config.json's names are SGLang's for these; they are all that its chat endpoint takes from it.
SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len")
# transformers says "no limit" with a number near 1e30.
NO_LIMIT = 1 << 40
_PROBE = "Aé 你好 سلام 12345 3.14\n\tdef f(x):  return 'x'\r\n🙂 naïve"


class ChatProblem(UserProblem):
    """A tokenizer or a template that cannot be used for any row: the sentence names it and the mend."""


class Unrenderable(Exception):
    """This row cannot become token ids; `reason` is a slug, `detail` says what was met."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


class ChatTokenizer:
    """A tokenizer with its chat template.

    `vocab_size` bounds the valid ids: one more than the largest, and never more than the model's own
    count, because an id beyond that ends a real server. `generation_config` holds the model's sampling
    defaults under SGLang's names. `probe_text` and `probe_ids` tell whether a server has this very tokenizer.
    The two hashes are the fingerprints of a run: they tell another
    tokenizer or template from the same one in another place or under another version of transformers.
    """

    def __init__(self, name: str, tokenizer: Any, chat_template_kwargs: dict[str, Any], folder: Path | None) -> None:
        self.name = name
        self.chat_template_kwargs = chat_template_kwargs
        self._tokenizer = tokenizer
        config = _json_file(folder, "config.json")
        generation = _json_file(folder, "generation_config.json")
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        sizes = [max(vocabulary.values(), default=-1) + 1, _setting(config, ("vocab_size",))]
        self.vocab_size = min(size for size in sizes if size is not None)
        self.bos_id: int | None = tokenizer.bos_token_id
        self.eos_ids = _eos_ids(tokenizer.eos_token_id, generation.get("eos_token_id"))
        self.generation_config: dict[str, Any] = {
            name: generation[name] for name in SAMPLING_DEFAULTS if isinstance(generation.get(name), int | float)
        }
        self.context_length = _setting(config, CONTEXT_KEYS)
        limit: Any = tokenizer.model_max_length
        self.model_max_length = int(limit) if limit is not None and limit < NO_LIMIT else None
        template: Any = tokenizer.chat_template
        self.has_template = bool(template)
        self.template_hash = _hash(template or "", chat_template_kwargs)
        self.tokenizer_hash = _hash(
            sorted(vocabulary.items(), key=lambda item: item[1]), self.eos_ids, self.bos_id, self._encode(_PROBE)
        )
        self.probe_text = self._probe()
        self.probe_ids = self._encode(self.probe_text)

    @classmethod
    def load(cls, name: str, chat_template_kwargs: dict[str, Any] | None = None) -> "ChatTokenizer":
        """Loads a tokenizer from a folder, the hub's cache or the hub, in this order.

        Raises:
            ChatProblem: there is none, or it is damaged.
        """
        folder = Path(name)
        if folder.exists():
            if not folder.is_dir():
                raise ChatProblem(f"the tokenizer {name} is a file; name the folder that holds tokenizer.json")
            return cls(name, _load(name, offline=True), dict(chat_template_kwargs or {}), folder)
        if folder.is_absolute() or name.startswith(".") or name.count("/") > 1:
            raise ChatProblem(f"there is no tokenizer folder {name}; correct `tokenizer` in the run file")
        try:
            tokenizer = _load(name, offline=True)
        except ChatProblem:
            tokenizer = _load(name, offline=False)
        return cls(name, tokenizer, dict(chat_template_kwargs or {}), _hub_folder(name))

    def check(self) -> None:
        """Renders a plain question, so that a broken template is told before any prompt is read.

        Raises:
            ChatProblem: there is no template, or it fails.
        """
        try:
            self.render([{"role": "user", "content": "Hello"}])
        except Unrenderable as error:
            raise ChatProblem(f"the chat template of {self.name} fails on a plain question: {error.detail}") from error

    def render(self, messages: Sequence[Message], tools: Sequence[Any] = ()) -> list[int]:
        """The ids of a conversation, up to where the model's answer begins.

        A template writes all special tokens itself, so none is added; a begin token that a tokenizer
        puts in all the same is taken out again. Text that looks like a special token becomes one, as in
        SGLang's own chat endpoint: prompts from a stranger may therefore hold turns of their own.

        Raises:
            ChatProblem: there is no template, or it is not valid Jinja.
            Unrenderable: this conversation does not fit the template, or cannot be encoded.
        """
        text = self._text([_for_template(message) for message in messages], list(tools))
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise Unrenderable(
                "surrogate", f"the text holds half a surrogate pair, {text[error.start]!a}, which is no character"
            ) from error
        ids = self._encode(text)
        if not ids:
            raise Unrenderable("empty_prompt", "the chat template makes nothing of the messages")
        bos = self.bos_id
        if bos is not None and ids[:2] == [bos, bos] and not text.startswith(2 * str(self._tokenizer.bos_token)):
            del ids[0]
        return ids

    def render_next(
        self,
        messages: Sequence[Message],
        answers: Sequence[str],
        followups: Sequence[Sequence[Message]],
        tools: Sequence[Any] = (),
    ) -> list[int]:
        """The ids of the turn after `answers`: see `history` and `render`, which it joins."""
        return self.render(history(messages, answers, followups), tools)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of ids; never to be encoded again, which may give other ids."""
        return str(
            self._tokenizer.decode(
                list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
            )
        )

    def _probe(self) -> str:
        """Text that tokenizers split differently, and the template's own tokens: some models differ only there."""
        try:
            return _PROBE + self._text([{"role": "user", "content": "Hello"}], [])
        except (ChatProblem, Unrenderable):  # no template, or one that `check` refuses where it is needed
            return _PROBE

    def _text(self, messages: list[Message], tools: list[Any]) -> str:
        import jinja2

        if not self.has_template:
            raise ChatProblem(
                f"the tokenizer {self.name} has no chat template; add its chat_template.jinja, "
                "or give prompts as input_ids"
            )
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    messages,
                    tools=tools or None,
                    tokenize=False,
                    add_generation_prompt=True,
                    **self.chat_template_kwargs,
                )
            )
        except jinja2.TemplateSyntaxError as error:
            raise ChatProblem(f"the chat template of {self.name} is broken at line {error.lineno}: {error}") from error
        except Exception as error:
            # A template is a program of its own: what it raises on a row's data can be anything.
            raise Unrenderable("template", f"the chat template refuses it: {_one_line(error)}") from error

    def _encode(self, text: str) -> list[int]:
        return cast("list[int]", self._tokenizer.encode(text, add_special_tokens=False))


def history(
    messages: Sequence[Message], answers: Sequence[str], followups: Sequence[Sequence[Message]]
) -> list[Message]:
    """The conversation as asked in the turn after `answers`: each answer, then the user's next messages."""
    asked = list(messages)
    for answer, following in zip(answers, followups, strict=False):
        asked.append({"role": "assistant", "content": answer})
        asked.extend(following)
    return asked


def _for_template(message: Message) -> Message:
    """A message as templates expect it: content always a text, arguments of calls as objects."""
    shown = {**message, "content": "" if message.get("content") is None else message["content"]}
    calls: Any = shown.get("tool_calls")
    if isinstance(calls, list):
        shown["tool_calls"] = [_call(call) for call in cast("list[Any]", calls)]
    return shown


def _call(call: Any) -> Any:
    try:
        function = dict(call["function"])
        function["arguments"] = json.loads(function["arguments"])
    except (TypeError, KeyError, ValueError):
        return call
    return {**call, "function": function}


def _load(name: str, *, offline: bool) -> Any:
    # Said once at import, at a level that cannot be set before the import: that there is no PyTorch.
    root = logging.getLogger("transformers")
    root.addFilter(_nothing)
    try:
        import transformers
    finally:
        root.removeFilter(_nothing)
    # Long prompts are this tool's business: they are measured against the server's context, not the tokenizer's.
    transformers.logging.set_verbosity_error()
    try:
        auto = cast("Any", transformers.AutoTokenizer)
        return auto.from_pretrained(name, local_files_only=offline, trust_remote_code=False)
    except Exception as error:
        # The tokenizers library raises plain Exception; whatever it is, this folder or id gives no tokenizer.
        where = "is no tokenizer" if Path(name).is_dir() else "cannot be had from this machine or the hub"
        raise ChatProblem(f"{name} {where} ({_one_line(error)}); correct `tokenizer` in the run file") from error


def _nothing(_: logging.LogRecord) -> bool:
    return False


def _hub_folder(name: str) -> Path | None:
    """Where the hub's cache keeps the model's small files; None where it has neither of them."""
    from transformers.utils import hub

    hub_file = cast("Any", hub).cached_file
    found: Path | None = None
    for wanted in ("config.json", "generation_config.json"):
        try:
            path = hub_file(name, wanted)
        except OSError:
            continue
        if path is not None:
            found = Path(path).parent
    return found


def _json_file(folder: Path | None, name: str) -> dict[str, Any]:
    if folder is None or not (folder / name).is_file():
        return {}
    try:
        held: Any = json.loads((folder / name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ChatProblem(f"{folder / name} cannot be read ({_one_line(error)}); copy it again") from error
    return cast("dict[str, Any]", held) if isinstance(held, dict) else {}


def _setting(config: dict[str, Any], names: Sequence[str]) -> int | None:
    """A size from config.json; models that also see or hear keep the text's under `text_config`."""
    for held in (config.get("text_config"), config):
        if isinstance(held, dict):
            for name in names:
                value = cast("dict[str, Any]", held).get(name)
                if isinstance(value, int) and value > 0:
                    return value
    return None


def _eos_ids(own: int | None, configured: Any) -> list[int]:
    held: list[Any] = cast("list[Any]", configured) if isinstance(configured, list) else [configured]
    return sorted({token for token in (own, *held) if isinstance(token, int)})


def _hash(*parts: Any) -> str:
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode("ascii"), digest_size=12).hexdigest()


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200].rstrip(".") if lines else type(error).__name__
