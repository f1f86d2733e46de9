"""Files of new word problems, as GSM8K has them."""

import json
from pathlib import Path

import numpy as np

from agentpeft.envs.gsm8k.word_problems import WordProblems


def write_word_problems(path: Path, num_tasks: int) -> None:
    """Writes problems of the training half, a JSON object a line."""
    rng, source = np.random.default_rng(0), WordProblems("train")
    tasks = (source.draw(rng) for _ in range(num_tasks))
    rows = ({"question": task.instruction, "answer": task.solution} for task in tasks)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
