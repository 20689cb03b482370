"""Renders the next turn of a conversation on the model's own answers.

The tokenizer is loaded when a second turn is first needed: most runs have none, and transformers costs
a worker 30 MB and most of a second.
"""

import asyncio
from typing import Any

from workers.contracts import Message, Payload, RunConfig


class NextTurn:
    """Called with a prompt and the answers so far; gives the next request's ids, and the messages as asked."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._tokenizer: Any = None

    async def __call__(self, payload: Payload, answers: list[str]) -> tuple[list[int], list[Message]]:
        return await asyncio.to_thread(self._render, payload, answers)

    def _render(self, payload: Payload, answers: list[str]) -> tuple[list[int], list[Message]]:
        from workers import chat

        if self._tokenizer is None:
            self._tokenizer = chat.ChatTokenizer.load(self._config.tokenizer, self._config.chat_template_kwargs)
        messages = chat.history(payload.messages, answers, payload.followups)
        return self._tokenizer.render(messages, payload.tools), messages
