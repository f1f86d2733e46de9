"""How generated DB-bench tasks are said in English; the words are in `data/phrases.txt`."""

from pathlib import Path

from agentpeft.envs.tasks.phrases import read_phrases

PHRASES = read_phrases(Path(__file__).parent / "data" / "phrases.txt")


def count_rows(num_rows: int) -> str:
    """Returns "row" or "3 rows", to go after "the first"."""
    return "row" if num_rows == 1 else f"{num_rows} rows"
