"""Runs the documentation's blocks, and scripts, that need an environment of their own."""

import json
import os
import subprocess
from pathlib import Path

from docs_blocks import BLOCKS, ROOT

QUIET = {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "OMP_NUM_THREADS": "1"}


def run_block(page, word, python, folder, after, *, before="", path=None):
    """Runs the page's one `needs:` block with `word` in it, then `after`; the last line said.

    `before` comes first. `path` is a folder of packages that stand before the interpreter's own.
    """
    blocks = [each for each in BLOCKS if each.page == ROOT / page and each.language == "python"]
    (block,) = [each.text for each in blocks if each.needs and word in each.text]
    script = folder / "block.py"
    script.write_text(f"{before}\n{block}\n{after}\n", encoding="utf-8")
    return _last_line([python, script], folder, path)


def play_script(name, words, python, folder, path=None):
    """Runs a script that lies here, which plays; the returns, and all that was shown, as text."""
    script = Path(__file__).with_name(name)
    played = json.loads(_last_line([python, script, *words], folder, path))
    return played["returns"], played["shown"]


def _last_line(words, folder, path):
    environ = {**os.environ, **QUIET, **({"PYTHONPATH": str(path)} if path else {})}
    done = subprocess.run(
        list(map(str, words)),
        cwd=folder, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]
