"""Records as lines: ASCII, never NaN, and the same whichever encoder wrote them."""

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.contracts import JOB_FUNCTION, Payload, Record
from workers.encodings import HostileJob, decode_job_data, encode_job_data, encode_line, pack_lines, unpack_lines

RECORD = Record(
    id="q1", dataset="D", turn=1, turns=1, prompt_tokens=2, completion_tokens=3, finish_reason="stop", matched="2",
    input_ids=[1, 2], output_ids=[5, 6, 2], text="", messages=[], sampling={}, model="m", weight_version="default",
    server="http://s", worker="w", attempt=1, rid="r", latency_s=0.5, created_at=1.5,
)  # fmt: skip
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def told(**changes: Any) -> Record:
    return msgspec.structs.replace(RECORD, **changes)


@given(text=st.text(st.characters(exclude_categories=())), content=anything)
def test_a_line_says_what_the_record_says(text: str, content: Any) -> None:
    line = encode_line(told(text=text, messages=[{"role": "user", "content": content}]))
    assert line.isascii()
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    read = json.loads(line)
    assert (read["text"], read["messages"][0]["content"]) == (text, content)
    assert read == {
        name: getattr(told(text=text, messages=read["messages"]), name) for name in Record.__struct_fields__
    }


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_number_that_json_has_not_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode_line(told(sampling={"temperature": number}))


def test_lines_travel_whole() -> None:
    lines = [encode_line(told(text=text)) for text in ("a", "", "\ud800", "é")]
    for _ in range(2):
        assert unpack_lines(pack_lines(lines)) == b"".join(lines)


@given(text=st.text(st.characters(exclude_categories=())))
def test_a_job_is_read_as_it_was_written(text: str) -> None:
    payload = Payload(dataset="D", id=text, input_ids=[1, 2], messages=[{"role": "user", "content": text}])
    assert decode_job_data(encode_job_data(payload)) == payload


@pytest.mark.parametrize(
    "call",
    [
        ["os.system", None, [], {"dataset": "D", "id": "q", "input_ids": [1]}],
        [JOB_FUNCTION, None, ["x"], {"dataset": "D", "id": "q", "input_ids": [1]}],
        [JOB_FUNCTION, "x", [], {"dataset": "D", "id": "q", "input_ids": [1]}],
        [JOB_FUNCTION, None, [], {"dataset": "D", "id": "q", "input_ids": ["1"]}],
        [JOB_FUNCTION, None, [], {"dataset": "D"}],
        [JOB_FUNCTION],
        {},
    ],
)
def test_what_is_no_job_of_ours_is_told(call: Any) -> None:
    with pytest.raises(HostileJob):
        decode_job_data(json.dumps(call).encode())
