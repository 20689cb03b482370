"""Chat templates and token ids: the one module that imports transformers, and only when it is used.

What is trained on must be, token for token, what the target model was asked: so the template is applied
here, once, and servers get ids. `/generate` applies neither a template nor the model's own sampling
defaults, which is why those are read here too.

transformers is imported inside functions: it takes seconds, and only producers and multi-turn jobs need it.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from workers.contracts import Message
from workers.direct import Direct, for_template, history
from workers.model_files import CONTEXT_KEYS, ChatProblem, fingerprint_of, json_file, one_line, setting, stop_ids
from workers.special_text import SpecialText
from workers.thinking import TAGS, Thinking

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# generation_config.json's names are SGLang's for these; they are all that its chat endpoint takes from it.
SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
# transformers says "no limit" with a number near 1e30.
NO_LIMIT = 1 << 40
log = logging.getLogger("tokenmill.chat")
_PROBE = "Aé 你好 سلام 12345 3.14\n\tdef f(x):  return 'x'\r\n🙂 naïve"


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
    `thinking` are the tags of a reasoning model. The two hashes are the fingerprints of a run: they tell another
    tokenizer or template from the same one in another place or under another version of transformers.
    """

    def __init__(
        self,
        name: str,
        tokenizer: Any,
        chat_template_kwargs: dict[str, Any],
        folder: Path | None,
        *,
        special_tokens_in_text: bool = False,
    ) -> None:
        self.name = name
        self.chat_template_kwargs = chat_template_kwargs
        self.special_tokens_in_text = special_tokens_in_text
        self.special_text = SpecialText(tokenizer)
        self._said_inexact = False
        self._tokenizer = tokenizer
        self._direct = Direct(tokenizer, _compiled(tokenizer), chat_template_kwargs)
        config = json_file(folder, "config.json")
        generation = json_file(folder, "generation_config.json")
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        sizes = [max(vocabulary.values(), default=-1) + 1, setting(config, ("vocab_size",))]
        self.vocab_size = min(size for size in sizes if size is not None)
        self.bos_id: int | None = tokenizer.bos_token_id
        self.eos_ids = stop_ids(tokenizer.eos_token_id, generation.get("eos_token_id"))
        self.generation_config: dict[str, Any] = {
            name: generation[name] for name in SAMPLING_DEFAULTS if isinstance(generation.get(name), int | float)
        }
        self.context_length = setting(config, CONTEXT_KEYS)
        limit: Any = tokenizer.model_max_length
        self.model_max_length = int(limit) if limit is not None and limit < NO_LIMIT else None
        template: Any = tokenizer.chat_template
        self.has_template = bool(template)
        self.template_hash = fingerprint_of(template or "", chat_template_kwargs)
        self.tokenizer_hash = fingerprint_of(
            sorted(vocabulary.items(), key=lambda item: item[1]), self.eos_ids, self.bos_id, self._encode(_PROBE)
        )
        self.thinking = self._tags(vocabulary)
        self.probe_text = self._probe()
        self.probe_ids = self._encode(self.probe_text)

    @classmethod
    def load(
        cls, name: str, chat_template_kwargs: dict[str, Any] | None = None, *, special_tokens_in_text: bool = False
    ) -> "ChatTokenizer":
        """Loads a tokenizer from a folder, the hub's cache or the hub, in this order.

        `special_tokens_in_text`: what looks like a special token in a user's text becomes one.

        Raises:
            ChatProblem: there is none, or it is damaged.
        """
        kwargs, folder = dict(chat_template_kwargs or {}), Path(name)
        check_name(name)
        if folder.is_dir():
            tokenizer = _load(name, offline=True)
            return cls(name, tokenizer, kwargs, folder, special_tokens_in_text=special_tokens_in_text)
        try:
            tokenizer = _load(name, offline=True)
        except ChatProblem:
            log.info("the tokenizer %s is not on this machine: asking the hub for it", name)
            tokenizer = _load(name, offline=False)
        return cls(name, tokenizer, kwargs, _hub_folder(name), special_tokens_in_text=special_tokens_in_text)

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
        puts in all the same is taken out again. Text in users' and tools' messages that looks like a
        special token stays text, unless `special_tokens_in_text` (SGLang's own chat endpoint makes special
        tokens of it: prompts from a stranger may then hold turns of their own).

        Raises:
            ChatProblem: there is no template, or it is not valid Jinja.
            Unrenderable: this conversation does not fit the template, or cannot be encoded.
        """
        shown = [for_template(message) for message in messages]
        if not self.special_tokens_in_text and (guarded := self._guarded(shown, list(tools))):
            return guarded
        text = self._text(shown, list(tools))
        ids = self._encode(_encodable(text))
        if not ids:
            raise Unrenderable("empty_prompt", "the chat template makes nothing of the messages")
        bos = self.bos_id
        if bos is not None and ids[:2] == [bos, bos] and not text.startswith(2 * str(self._tokenizer.bos_token)):
            del ids[0]
        return ids

    def _guarded(self, messages: list[Message], tools: list[Any]) -> list[int] | None:
        """The ids where users wrote what looks like special tokens; None where they did not, or it stays special."""
        guarded = self.special_text.guard(messages)
        if guarded is None:
            return None
        text = _encodable(self._text(guarded.messages, tools))
        ids = self.special_text.encode(text, guarded.stand_ins)
        if ids is None and not self._said_inexact:
            self._said_inexact = True
            log.warning(
                "%s cannot keep text that looks like a special token apart%s: in such prompts it becomes one",
                self.name,
                f" ({self.special_text.note})" if self.special_text.note else " in some prompts",
            )
        return ids

    def text(self, messages: Sequence[Message], tools: Sequence[Any] = ()) -> str:
        """A conversation as the template writes it, before it becomes ids; raises as `render` does."""
        return self._text([for_template(message) for message in messages], list(tools))

    def default_system(self) -> str:
        """The system prompt that the template adds where a conversation has none; nothing if it adds none."""
        try:
            bare = self.text([{"role": "user", "content": "USER"}])
            given = self.text([{"role": "system", "content": "SYSTEM"}, {"role": "user", "content": "USER"}])
        except Unrenderable:
            return ""
        before, _, after = given.partition("SYSTEM")
        opening, closing, bare = before, after.partition("USER")[0], bare.partition("USER")[0]
        if not (opening and bare.startswith(opening) and bare.endswith(closing)):
            return ""
        return bare[len(opening) : len(bare) - len(closing)]

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

    @property
    def backend(self) -> "Tokenizer | None":
        """The tokenizer itself, where transformers runs one of the tokenizers library."""
        return getattr(self._tokenizer, "backend_tokenizer", None)

    def _tags(self, vocabulary: dict[str, int]) -> Thinking | None:
        """A reasoning model's tags: they are tokens of their own, or its template takes them out of history."""
        for opens, closes in TAGS:
            template = self._tokenizer.chat_template
            if closes in vocabulary or (isinstance(template, str) and closes in template):
                ids = [self._encode(tag) for tag in (opens, closes)]
                return Thinking(opens=opens, closes=closes, open_ids=ids[0], close_ids=ids[1])
        return None

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
        if (text := self._direct.text(messages, tools)) is not None:
            return text
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
            raise Unrenderable("template", f"the chat template refuses it: {one_line(error)}") from error

    def _encode(self, text: str) -> list[int]:
        ids = self._direct.encode(text)
        return cast("list[int]", self._tokenizer.encode(text, add_special_tokens=False)) if ids is None else ids


def check_name(name: str) -> None:
    """What the name alone tells, at once and without transformers: a folder that is none.

    Raises:
        ChatProblem: it cannot name a tokenizer.
    """
    folder = Path(name)
    if folder.exists() and not folder.is_dir():
        raise ChatProblem(f"the tokenizer {name} is a file; name the folder that holds tokenizer.json")
    if not folder.exists() and (folder.is_absolute() or name.startswith(".") or name.count("/") > 1):
        raise ChatProblem(f"there is no tokenizer folder {name}; correct `tokenizer` in the run file")


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Unrenderable(
            "surrogate", f"the text holds half a surrogate pair, {text[error.start]!a}, which is no character"
        ) from error
    return text


def _compiled(tokenizer: Any) -> Any:
    """The tokenizer's template as transformers compiles it, once; None where this version has no such function."""
    try:
        from transformers.utils import chat_template_utils

        compile_template = cast("Any", chat_template_utils)._compile_jinja_template
        return compile_template(tokenizer.chat_template) if isinstance(tokenizer.chat_template, str) else None
    except Exception:
        # A broken template is told when it is used.
        return None


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
    # It tells each of its tries; what they come to is told below, once.
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    chosen = transformers.PreTrainedTokenizerFast if _is_plain(Path(name)) else transformers.AutoTokenizer
    try:
        return cast("Any", chosen).from_pretrained(name, local_files_only=offline, trust_remote_code=False)
    except Exception as error:
        # The tokenizers library raises plain Exception; whatever it is, this folder or id gives no tokenizer.
        where = "is no tokenizer" if Path(name).is_dir() else "cannot be had from this machine or the hub"
        raise ChatProblem(f"{name} {where} ({one_line(error)}); correct `tokenizer` in the run file") from error


def _is_plain(folder: Path) -> bool:
    """Whether the folder asks for transformers' own tokenizer class, and no model's configuration says otherwise.

    AutoTokenizer then comes to the same class, after half a second in which it loads what it knows of all models.
    """
    if (folder / "config.json").exists() or not (folder / "tokenizer.json").is_file():
        return False
    return json_file(folder, "tokenizer_config.json").get("tokenizer_class") == "PreTrainedTokenizerFast"


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
