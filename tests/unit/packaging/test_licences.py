"""docs/licences.md says what is shipped: each package of the lock's runtime section, and what is vendored."""

import re
import subprocess
import sys

import pytest

from tests.e2e_support import ROOT

PAGE = (ROOT / "docs" / "licences.md").read_text(encoding="utf-8")


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other packages are installed than the image's Python has")
def test_the_page_is_what_the_lock_and_the_packages_say() -> None:
    command = [sys.executable, str(ROOT / ".ci" / "licences.py"), "--print"]
    written = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert written == PAGE, "run `make licences`"


def test_what_is_vendored_is_the_release_that_the_page_names() -> None:
    (release,) = re.findall(r"^\| uPlot .*\| ([0-9.]+) \| MIT \|$", PAGE, flags=re.MULTILINE)
    vendored = ROOT / "tokenmill" / "dashboard" / "static" / "vendor"
    assert f"(v{release})" in (vendored / "uPlot.iife.min.js").read_text(encoding="utf-8")
    assert (vendored / "uPlot.LICENSE").is_file()
