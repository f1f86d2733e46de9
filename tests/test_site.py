"""The documentation builds as a site: every link leads somewhere, every page has its place."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "reference/environments/index.html").read_text(encoding="utf-8")
    assert "TextEnv" in page
    page = (tmp_path / "your_environment/index.html").read_text(encoding="utf-8")
    assert '<span class="k">class</span>' in page  # code has colours
    for path in tmp_path.rglob("index.html"):
        assert "needs:" not in path.read_text(encoding="utf-8"), path
