"""Runs the documentation's blocks that need an environment of their own."""

import os
import subprocess

from docs_blocks import BLOCKS, ROOT


def run_block(page, word, python, folder, after):
    """Runs the page's one `needs:` block with `word` in it, then `after`; the last line said."""
    blocks = [each for each in BLOCKS if each.page == ROOT / page and each.language == "python"]
    (block,) = [each.text for each in blocks if each.needs and word in each.text]
    script = folder / "block.py"
    script.write_text(f"{block}\n{after}\n", encoding="utf-8")
    quiet = {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(python), str(script)],
        cwd=folder, env={**os.environ, **quiet}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]
