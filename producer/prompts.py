"""A row's value into a job's payload: rendered, every id checked, and cut to what the server can take.

All that a server would answer with an error, or die of, is found here: an id outside the vocabulary ends
a real server's process, and with it every answer in flight.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from producer.defects import Defect
from producer.rows import to_prompt
from workers.chat import Unrenderable
from workers.contracts import DatasetConfig, Message, Payload

# Characters: four times what a token has on average. And tokens: more than a template puts around one message.
LONG_TOKEN, TURN = 16, 512
# SGLang keeps these for itself: the longest prompt it takes is that much shorter than its context.
SERVER_RESERVE = 7


class Renderer(Protocol):
    """What is needed of a tokenizer; `workers.chat.ChatTokenizer` is one."""

    @property
    def vocab_size(self) -> int | None: ...

    def render(self, messages: Sequence[Message], tools: Sequence[Any] = ()) -> list[int]: ...


def to_payload(
    dataset: DatasetConfig, prompt_id: str, value: Any, tokenizer: Renderer, context_length: int | None
) -> Payload | Defect:
    """The payload of one row, or why it can never be a job.

    Later turns are rendered when their answers are there; here only the first one is. `max_new_tokens`
    is set where prompt and answer together would not fit the context, None where it is unknown.

    Raises:
        ChatProblem: the tokenizer has no chat template, or a broken one, and the row needs it.
    """
    prompt = to_prompt(value, dataset.fields, dataset.history)
    if isinstance(prompt, Defect):
        return prompt
    ids = prompt.input_ids
    if not ids:
        if context_length is not None and (defect := hopeless(prompt.messages, tokenizer, context_length)):
            return defect
        try:
            ids = tokenizer.render(prompt.messages, prompt.tools)
        except Unrenderable as error:
            return Defect(error.reason, error.detail)
    bound = tokenizer.vocab_size
    # Ready ids are none of them negative, or the row would be a defect.
    if bound is not None and not (max(ids) < bound and (prompt.input_ids or min(ids) >= 0)):
        at, token = next((at, token) for at, token in enumerate(ids) if not 0 <= token < bound)
        return Defect("bad_ids", f"token {at + 1} of the prompt is {token}; the model knows the ids 0 to {bound - 1}")
    cut: int | None = None
    if context_length is not None:
        if defect := too_long(len(ids), context_length):
            return defect
        wanted: Any = dataset.sampling.get("max_new_tokens")
        room = context_length - len(ids)
        if isinstance(wanted, int) and wanted > room:
            cut = room
    return Payload(
        dataset=dataset.name,
        id=prompt_id,
        input_ids=ids,
        messages=prompt.messages,
        followups=prompt.followups,
        tools=prompt.tools,
        max_new_tokens=cut,
        reference=prompt.reference,
    )


def hopeless(messages: Sequence[Message], tokenizer: Renderer, context_length: int) -> Defect | None:
    """Why a huge conversation cannot be sent, told by the beginning of its longest message.

    20 MB of text take a tokenizer half a minute and three gigabytes. None where that much text is not there,
    or is too few tokens after all: then the whole is tokenized.
    """
    texts = [text for message in messages if isinstance(text := message.get("content"), str)]
    enough = context_length * LONG_TOKEN
    if sum(map(len, texts)) <= enough:
        return None
    beginning = max(texts, key=len)[:enough]
    try:
        tokens = len(tokenizer.render([{"role": "user", "content": beginning}]))
    except Unrenderable:
        return None
    return too_long(tokens - TURN, context_length, beginning=True)


def too_long(tokens: int, context_length: int, *, beginning: bool = False) -> Defect | None:
    """Why a prompt of that many tokens cannot be sent to a server of that context, if it cannot.

    Args:
        beginning: the tokens are those of its beginning.
    """
    longest = max(0, context_length - SERVER_RESERVE)
    if tokens <= longest:
        return None
    return Defect(
        "too_long",
        f"the prompt has {'more than ' if beginning else ''}{tokens:,} tokens; the longest that a context of "
        f"{context_length:,} takes has {longest:,}",
    )
