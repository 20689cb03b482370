"""Every test gets a folder of its own to export from."""

from pathlib import Path

import pytest

from tests.unit.exports.shelf import Shelf


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)
