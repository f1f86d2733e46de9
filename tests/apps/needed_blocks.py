"""Runs the documentation's blocks, and scripts, that need an environment of their own."""

import json
import os
import subprocess
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from docs_blocks import BLOCKS, ROOT

QUIET = {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "OMP_NUM_THREADS": "1"}


def run_block(page, word, python, folder, after, *, before="", path=None):
    """Runs the page's one `needs:` block with `word` in it, then `after`; the last line said.

    `before` comes first. `path` is a folder of packages that stand before the interpreter's own.
    """
    script = folder / "block.py"
    script.write_text(f"{before}\n{_find_block(page, word)}\n{after}\n", encoding="utf-8")
    return _last_line([python, script], folder, path)


def import_recipe(page, word, folder):
    """Imports the page's one `needs:` block with `word` in it as a module, and returns it."""
    path = folder / "recipe.py"
    path.write_text(_find_block(page, word), encoding="utf-8")
    spec = spec_from_file_location(path.stem, path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _find_block(page, word):
    blocks = [block for block in BLOCKS if block.page == ROOT / page and block.needs]
    (text,) = [b.text for b in blocks if b.language == "python" and word in b.text]
    return text


def play_script(name, words, python, folder, path=None):
    """Runs a script that lies here, which plays; the returns, and all that was shown, as text."""
    script = Path(__file__).with_name(name)
    played = json.loads(_last_line([python, script, *words], folder, path))
    return played["returns"], played["shown"]


def _last_line(words, folder, path):
    folders = os.pathsep.join(map(str, filter(None, [path, ROOT, ROOT / "tests"])))
    environ = {**os.environ, **QUIET, "PYTHONPATH": folders}
    done = subprocess.run(
        list(map(str, words)),
        cwd=folder, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]
