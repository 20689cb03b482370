"""Later turns of a conversation: rendered by the worker, on the model's own answers.

The tokenizer is loaded when a conversation first needs it (transformers costs seconds and 40 MB), once,
and off the event loop.
"""

import asyncio
from collections.abc import Sequence

from workers import chat
from workers.contracts import Message, Payload, RunConfig


class Turns:
    """Renders next turns for one worker."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._lock = asyncio.Lock()
        self._tokenizer: chat.ChatTokenizer | None = None

    async def render_next(self, payload: Payload, answers: Sequence[str]) -> tuple[list[int], list[Message]]:
        """The ids of the turn after `answers`, and the messages that they render.

        Raises:
            ChatProblem: the run's tokenizer cannot be loaded here.
            Unrenderable: this conversation cannot go on.
        """
        async with self._lock:  # two first imports of transformers at once break each other
            if self._tokenizer is None:
                self._tokenizer = await asyncio.to_thread(
                    chat.ChatTokenizer.load,
                    self._config.tokenizer,
                    self._config.chat_template_kwargs,
                    special_tokens_in_text=self._config.special_tokens_in_text,
                )
        messages = chat.history(payload.messages, answers, payload.followups)
        return await asyncio.to_thread(self._tokenizer.render, messages, payload.tools), messages
