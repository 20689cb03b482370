"""Files are cut by content: every layout that public sets come in, and the ways in which files are broken."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from producer import scan
from producer.defects import Defect, decode
from producer.errors import PromptsProblem
from producer.scan import layout, pieces

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(st.text(max_size=8), json_values, max_size=5)


def values(path: Path) -> list[Any]:
    return [decode(piece.raw) for piece in pieces(path)]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "CHUNK_BYTES", 7)


@pytest.mark.parametrize(
    ("content", "cut", "count"),
    [
        (b'{"a":1}\n{"a":2}\n', "lines", 2),
        (b'{"a":1}\n{"a":2}', "lines", 2),
        (b'\xef\xbb\xbf{"a":1}\r\n\r\n  \t\r\n{"a":2}\r\n', "lines", 2),
        (b'\n\n  {"a":1}  \n', "lines", 1),
        (b'{"a": broken\n{"a":2}\n', "lines", 2),
        (b'{"a":1} trailing\n{"a":2}\n', "lines", 2),
        (b'garbage\n{"a":2}\n', "lines", 2),
        ('{"a":"x\u2028y\u2029z\u0085"}\n{"a":2}\n'.encode(), "lines", 2),
        (b'[{"a":1},{"a":2}]', "array", 2),
        (b'\xef\xbb\xbf [\r\n  {\n    "a": [1, {"b": "],}{["}]\n  },\n  {"a":2}\n]\r\n', "array", 2),
        (b'[1, "x", null, [2, 3], {"a": {}}]', "array", 5),
        (b'[{"a":1},]', "array", 1),
        (b'[{"a":"\\"],{\\\\"}, {"a":2}]', "array", 2),
        (b'{\n  "a": 1\n}\n', "objects", 1),
        (b'{\n  "a": 1\n}\n{\n  "a": 2\n}', "objects", 2),
    ],
)
def test_layouts(tmp_path: Path, content: bytes, cut: str, count: int) -> None:
    plain, packed, denser = tmp_path / "prompts.txt", tmp_path / "prompts.json", tmp_path / "prompts"
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    # Two frames, as tools that compress in parallel write them.
    denser.write_bytes(zstandard.compress(content[:3]) + zstandard.compress(content[3:]))
    assert layout(plain) == layout(packed) == layout(denser) == cut
    assert len(values(plain)) == count
    assert list(pieces(plain)) == list(pieces(packed)) == list(pieces(denser))


def test_positions_and_offsets_lead_back_to_the_row(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a":1}\r\n\n   {"a":2}\n')
    first, second = pieces(path)
    assert (first.position, second.position) == (1, 3)
    for piece in (first, second):
        assert path.read_bytes()[piece.offset :].startswith(piece.raw)
    path.write_bytes(b'[ {"a":1} ,\n\n {"a":2}]')
    first, second = pieces(path)
    assert (first.position, second.position) == (1, 2)
    assert path.read_bytes()[second.offset :].startswith(second.raw)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("indent", [None, 0, 2])
def test_arrays_across_chunk_borders(tmp_path: Path, indent: int | None) -> None:
    rows = [{"text": "x" * n + '\\"]},{["' + "\n" * n, "n": n, "deep": [[{"a": [n]}]]} for n in range(40)]
    path = tmp_path / "p.json"
    path.write_text(json.dumps(rows, indent=indent))
    assert values(path) == rows
    content = path.read_bytes()
    for piece in pieces(path):
        assert content[piece.offset : piece.offset + len(piece.raw)] == piece.raw


@given(st.lists(objects, min_size=1, max_size=8), st.sampled_from([None, 1]), st.booleans())
def test_any_array_and_any_lines_give_back_their_rows(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], indent: int | None, ascii_only: bool
) -> None:
    # Indented objects one after another are told by their first line, which an empty one does not break.
    rows = [{"first": 1} | row for row in rows]
    folder = tmp_path_factory.mktemp("scan")
    array, lines, stream = folder / "array.json", folder / "lines.jsonl", folder / "stream.json"
    array.write_text(json.dumps(rows, indent=indent, ensure_ascii=ascii_only), "utf-8", newline="")
    lines.write_text("\n".join(json.dumps(row, ensure_ascii=ascii_only) for row in rows), "utf-8", newline="")
    stream.write_text(
        "\n".join(json.dumps(row, indent=2, ensure_ascii=ascii_only) for row in rows), "utf-8", newline=""
    )
    assert values(array) == rows
    assert values(lines) == rows
    assert values(stream) == rows


@given(json_values)
def test_both_decoders_agree(value: Any) -> None:
    text = json.dumps(value)
    decoded = decode(text.encode())
    assert decoded == json.loads(text)
    assert repr(decoded) == repr(json.loads(text))


@pytest.mark.parametrize("cut", range(1, 34))
def test_an_array_cut_anywhere_keeps_its_whole_rows(tmp_path: Path, cut: int) -> None:
    content = b'[{"a":"one"}, {"a":"two"}, {"a":3}]'
    path = tmp_path / "p.json"
    path.write_bytes(content[:cut])
    good = [value for value in values(path) if not isinstance(value, Defect)]
    assert good == [{"a": "one"}, {"a": "two"}, {"a": 3}][: len(good)]
    assert len(values(path)) - len(good) <= 1


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"{", "malformed"),
        (b'{"a": NaN}', "nan"),
        (b'{"a": -Infinity}', "nan"),
        (b'{"a": 1e999}', "nan"),
        (b'{"a": "\xff"}', "malformed"),
        (b'{"a": "\xed\xa0\x80"}', "malformed"),
        (b"[" * 100_000, "malformed"),
        (b'{"a": ' + b"1" * 5000 + b"}", "malformed"),
        (b"", "malformed"),
    ],
)
def test_rows_that_are_not_json(raw: bytes, reason: str) -> None:
    defect = decode(raw)
    assert isinstance(defect, Defect)
    assert defect.reason == reason
    assert "\n" not in defect.detail


def test_escaped_lone_surrogates_and_a_mark_in_the_middle_are_json() -> None:
    assert decode(b'{"a": "\\ud800"}') == {"a": "\ud800"}
    assert decode(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"PK\x03\x04xyz", "a zip archive"),
        (b"\x28\xb5\x2f\xfdxyz", "damaged zstd"),
        (zstandard.compress(b'{"a":1}\n' * 1000)[:-5], "damaged zstd"),
        ('{"a":1}'.encode("utf-16"), "UTF-16"),
        (b"question\tanswer\nwhy?\tbecause\n", "is not JSON"),
        (b"\x1f\x8b" + b"\0" * 20, "damaged gzip"),
        (gzip.compress(b'{"a":1}\n' * 1000, mtime=0)[:-20], "damaged gzip"),
    ],
)
def test_files_of_another_kind_are_named(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    with pytest.raises(PromptsProblem, match=says) as caught:
        list(pieces(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_row_without_an_end_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "MAX_ROW_BYTES", 1 << 20)
    monkeypatch.setattr(scan, "CHUNK_BYTES", 1 << 16)
    path = tmp_path / "p.json"
    path.write_bytes(b'[{"a": "' + b"x" * (3 << 20))
    with pytest.raises(PromptsProblem, match="element 1 has no end"):
        list(pieces(path))
    path.write_bytes(b'{"a":1}\n{"a": "' + b"x" * (3 << 20))
    with pytest.raises(PromptsProblem, match="line 2 is longer"):
        list(pieces(path))
