"""GSM8K problems: from files, folders or the hub, and as prompts."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

from agentpeft.envs.core.errors import SettingsError
from agentpeft.envs.gsm8k.answers import is_correct, parse_number
from agentpeft.envs.tasks.hub import load_hub_rows
from agentpeft.envs.tasks.records import Record
from agentpeft.envs.tasks.task import Task
from agentpeft.envs.tasks.taskset import Taskset

HUB = "hub"
HUB_DATASET = "openai/gsm8k"
DEFAULT_SPLIT = "train"

PromptStyle: TypeAlias = Literal["full", "compact", "tools"]


@dataclass(frozen=True, kw_only=True)
class GSM8KTask(Task):
    """A word problem. `solution` ends in `#### N`; `answer` is that N as written."""

    solution: str
    answer: str


def parse_gsm8k(record: Record, source: str) -> GSM8KTask:
    """Returns the task of a row with `question` and `answer`. Raises: DataError."""
    question, solution = record.get("question", str), record.get("answer", str)
    steps, marker, answer = solution.rpartition("####")
    if not marker:
        raise record.error("answer", "has no '#### N' with the final answer")
    if parse_number(answer) is None:
        raise record.error("answer", f"must end in a number after '####', got {answer!r:.60}")
    if not is_correct(solution, answer):
        raise record.error("answer", f"states another final answer than its last, {answer!r:.60}")
    if not question.strip():
        raise record.error("question", "is empty")
    return make_task(f"{source}#{record.key}", question, steps, answer.strip())


def make_task(task_id: str, question: str, steps: str, answer: str) -> GSM8KTask:
    """Returns a task whose solution is `steps`, one a line, and whose skill is their number."""
    lines = [line for line in steps.strip().split("\n") if line]
    return GSM8KTask(
        task_id=task_id,
        instruction=question,
        skills=(f"{len(lines)}_steps",),
        solution="\n".join([*lines, f"#### {answer}"]),
        answer=answer,
    )


def load_gsm8k(data: str | Path, split: str | None = None) -> Taskset[GSM8KTask]:
    """Returns the tasks of a JSONL file, of `{split}.jsonl` in a folder, or of the hub.

    `split` None is "train". Raises: DataError, SettingsError.
    """
    if data == HUB:
        split = split or DEFAULT_SPLIT
        rows = load_hub_rows(HUB_DATASET, "main", split)
        return Taskset(parse_gsm8k(row, split) for row in rows)
    path = Path(data)
    if path.is_dir():
        path /= f"{split or DEFAULT_SPLIT}.jsonl"
    elif split is not None:
        raise SettingsError(f"split={split!r} needs data='hub' or a folder, got file {str(path)!r}")
    return Taskset.load(path, partial(parse_gsm8k, source=path.stem))


def render_prompt(task: GSM8KTask, style: PromptStyle = "full", max_turns: int = 1) -> str:
    """Returns the first observation."""
    turns = "1 turn" if max_turns == 1 else f"{max_turns} turns"
    if style == "compact":
        return f"{task.instruction}\n{turns}; end with #### and the number."
    if style == "tools":
        return (
            f"Solve the problem below, step by step. You have {turns}. Submit the final answer by "
            f"the tool: the number alone, such as 3.5.\n\nProblem: {task.instruction}"
        )
    thinking = "" if max_turns == 1 else "Turns without a final answer are for thinking. "
    return (
        f"Solve the problem below, step by step. You have {turns}. {thinking}State the final "
        "answer once, on a last line of its own, as #### and the number alone, for example:\n"
        f"#### 3.5\n\nProblem: {task.instruction}"
    )
