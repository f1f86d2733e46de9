"""The examples of the README and of docs/ run as they stand and print what is written there."""

import os
import re
import subprocess
import sys

import pytest
from docs_blocks import PAGES, ROOT, script_of, texts_of, write_files

from agentpeft.launch.prepare_data import main

README = ROOT / "README.md"
EXAMPLES = [page for page in PAGES if texts_of(page, "python") or texts_of(page, "text")]
PROBLEM = '{"question": "How many are 2 and 3?", "answer": "2 + 3 = 5\\n#### 5"}\n'


def run_python(page, folder):
    """Returns what a page's Python blocks print, run as one script."""
    write_files(folder, [page])
    script = folder / "examples.py"
    script.write_text(script_of(page), encoding="utf-8")
    command = [sys.executable, "-W", "error", str(script)]
    env = {**os.environ, "AGENTPEFT_CACHE": str(folder / "cache")}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_examples_run(tmp_path):
    assert run_python(README, tmp_path) == "success 1.0\n"


@pytest.mark.slow
@pytest.mark.parametrize("page", EXAMPLES[1:], ids=lambda page: page.stem)
def test_the_documentation_runs_and_prints_what_it_says(page, tmp_path):
    (tmp_path / "train.jsonl").write_text(PROBLEM, encoding="utf-8")
    tasks = str(tmp_path / "entry_dict.json")
    main(["generate", "--num-tasks", "3", "--skills", "select", "--output", tasks])
    printed = run_python(page, tmp_path)
    for text in texts_of(page, "text"):
        assert text in printed


@pytest.mark.parametrize("page", PAGES)
def test_links_and_named_files_exist(page):
    text = page.read_text("utf-8")
    names = re.findall(r"\]\((?!http)([^)#]+)\)", text)
    names += re.findall(r"`((?:docs|benchmarks|examples|tests|launch|apps|\.ci)/[\w./-]+)`", text)
    missing = [n for n in names if not ((ROOT / n).exists() or (page.parent / n).exists())]
    assert not missing
