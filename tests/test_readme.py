"""The examples of the README and of docs/ run as they stand and print what is written there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agentpeft.launch.prepare_data import main

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PROBLEM = '{"question": "How many are 2 and 3?", "answer": "2 + 3 = 5\\n#### 5"}\n'


def blocks(path, language):
    """Returns the text of a file's fenced blocks in a language."""
    found = re.findall(rf"^(```+){language}\n(.*?)^\1$", path.read_text("utf-8"), re.M | re.S)
    return [text for _, text in found]


def run_python(path, folder):
    script = folder / "examples.py"
    script.write_text("\n".join(blocks(path, "python")), encoding="utf-8")
    command = [sys.executable, "-W", "error", str(script)]
    env = {**os.environ, "AGENTPEFT_CACHE": str(folder / "cache")}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_examples_run(tmp_path):
    assert run_python(ROOT / "README.md", tmp_path) == "success 1.0\n"


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.stem)
def test_the_documentation_runs_and_prints_what_it_says(path, tmp_path):
    (tmp_path / "train.jsonl").write_text(PROBLEM, encoding="utf-8")
    tasks = str(tmp_path / "entry_dict.json")
    main(["generate", "--num-tasks", "3", "--skills", "select", "--output", tasks])
    printed = run_python(path, tmp_path)
    for text in blocks(path, "text"):
        assert text in printed


@pytest.mark.parametrize("path", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS])
def test_links_and_named_files_exist(path):
    text = path.read_text("utf-8")
    names = re.findall(r"\]\((?!http)([^)#]+)\)", text)
    names += re.findall(r"`((?:docs|benchmarks|examples|tests|launch|\.ci)/[\w./-]+)`", text)
    missing = [n for n in names if not ((ROOT / n).exists() or (path.parent / n).exists())]
    assert not missing
