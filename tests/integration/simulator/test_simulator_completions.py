"""The OpenAI API of the simulated server: the prompt that the template makes, the same engine, the same refusals."""

from pathlib import Path
from typing import Any

from tests.integration.simulator.test_simulator_endpoints import Call, run_scene
from workers.chat import ChatTokenizer
from workers.simulator.server import Simulator

HELLO = [{"role": "user", "content": "Hello, what is 2 + 2?"}]
EXAMPLE_TOKENIZER = str(Path(__file__).resolve().parents[3] / "examples" / "tokenizer")
PATH = "/v1/chat/completions"


def test_a_conversation_is_answered_as_generate_answers_its_ids() -> None:
    ids = ChatTokenizer.load(EXAMPLE_TOKENIZER).render(HELLO)

    async def scene(simulator: Simulator, call: Call) -> None:
        body = {"model": "m", "messages": HELLO, "max_tokens": 20, "return_token_ids": True}
        status, whole = await call(PATH, body)
        assert status == 200
        _, generated = await call("/generate", {"input_ids": ids, "sampling_params": {"max_new_tokens": 20}})
        (choice,) = whole["choices"]
        assert (whole["prompt_token_ids"], choice["token_ids"]) == (ids, generated["output_ids"])
        assert (choice["message"]["content"], choice["finish_reason"]) == (generated["text"], "length")
        assert (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]) == (len(ids), 20)
        status, plain = await call(PATH, {"model": "m", "messages": HELLO, "max_completion_tokens": 5, "n": 2})
        assert [len(plain["choices"]), plain["usage"]["completion_tokens"]] == [2, 10]
        assert "prompt_token_ids" not in plain and "token_ids" not in plain["choices"][0]

    run_scene(scene, tokenizer=EXAMPLE_TOKENIZER)


def test_what_it_refuses_is_worded_as_this_api_words_it() -> None:
    async def scene(simulator: Simulator, call: Call) -> None:
        def asked(**changes: Any) -> dict[str, Any]:
            return {"model": "m", "messages": HELLO, "max_tokens": 5, **changes}

        for body, code, words in (
            (asked(messages=[{"role": "user", "content": "word " * 400}]), 400, "longer than the model's context"),
            (asked(max_tokens=-1), 400, "max_new_tokens must be at least 0"),
            (asked(messages=None), 400, "Field required"),
            (asked(messages=["no message"]), 400, ""),
        ):
            status, told = await call(PATH, body)
            assert (status, told["object"], told["code"]) == (code, "error", code)
            assert words in told["message"]
        await call("/simulator/faults", {"faults": [{"mode": "unavailable"}]})
        status, told = await call(PATH, asked())
        assert (status, told["message"]) == (503, "The request queue is full.")

    run_scene(scene, tokenizer=EXAMPLE_TOKENIZER, context_length=200)


def test_a_full_queue_and_no_tokenizer() -> None:
    async def scene(simulator: Simulator, call: Call) -> None:
        status, told = await call(PATH, {"model": "m", "messages": HELLO})
        assert (status, told["type"]) == (500, "InternalServerError")

    run_scene(scene)
