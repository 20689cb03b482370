"""Rows are read from their files by offset: together where they follow each other, and always the right bytes."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producer import packed
from producer.packed import Handles

FILES = 3
SIZE = 4000


@pytest.fixture(scope="module")
def files() -> Iterator[list[tuple[Path, bytes]]]:
    with tempfile.TemporaryDirectory() as folder:
        made = [(Path(folder) / str(number), os.urandom(SIZE)) for number in range(FILES)]
        for path, content in made:
            path.write_bytes(content)
        yield made


places = st.tuples(st.integers(0, FILES - 1), st.integers(0, SIZE + 10), st.integers(0, 900))


@settings(max_examples=300)
@given(wanted=st.lists(places, max_size=40))
def test_any_order_reads_the_files_bytes(files: list[tuple[Path, bytes]], wanted: list[tuple[int, int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch, Handles() as handles:
        patch.setattr(packed, "AHEAD_BYTES", 500)
        for number, offset, length in wanted:
            path, content = files[number]
            assert handles.read(path, offset, length) == content[offset : offset + length]


@pytest.fixture
def preads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The system's reads, (offset, length), as they are made."""
    calls: list[tuple[int, int]] = []
    pread = os.pread

    def counted(handle: int, length: int, offset: int) -> bytes:
        calls.append((offset, length))
        return pread(handle, length, offset)

    monkeypatch.setattr(os, "pread", counted)
    return calls


def test_rows_that_follow_each_other_are_read_together(
    files: list[tuple[Path, bytes]], preads: list[tuple[int, int]]
) -> None:
    path, content = files[0]
    with Handles() as handles:
        for offset in range(0, SIZE, 40):
            assert handles.read(path, offset, 39) == content[offset : offset + 39]
    assert preads == [(0, 39), (40, packed.AHEAD_BYTES)]


def test_rows_apart_are_read_alone(
    files: list[tuple[Path, bytes]], preads: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "AHEAD_BYTES", 100)
    with Handles() as handles:
        for offset in (3000, 10, 2000, 500):
            handles.read(files[1][0], offset, 20)
    assert preads == [(3000, 20), (10, 20), (2000, 20), (500, 20)]
