"""Runs the documentation's blocks that need an environment of their own."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_block(page, word, python, folder, after):
    """Runs the page's one `needs:` block with `word` in it, then `after`; the last line said."""
    text = (ROOT / page).read_text("utf-8")
    blocks = re.findall(r"^```python needs:\w+\n(.*?)^```$", text, re.M | re.S)
    (block,) = [block for block in blocks if word in block]
    script = folder / "block.py"
    script.write_text(f"{block}\n{after}\n", encoding="utf-8")
    quiet = {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(python), str(script)],
        cwd=folder, env={**os.environ, **quiet}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]
