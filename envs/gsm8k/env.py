"""`AgentPEFT/GSM8K-v0`: word problems, graded by the value of the final answer."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Unpack, get_args

from agentpeft.envs.core.errors import SettingsError, check_choice, check_path, check_share
from agentpeft.envs.core.rewards import Outcome
from agentpeft.envs.core.text_env import EpisodeOptions, TextEnv, Turn
from agentpeft.envs.gsm8k.answers import NoAnswer, find_final_answer, is_gold_number, parse_number
from agentpeft.envs.gsm8k.tasks import GSM8KTask, PromptStyle, load_gsm8k, render_prompt
from agentpeft.envs.gsm8k.word_problems import WordProblems, write_with_lapses
from agentpeft.envs.tasks.task import TaskSource


class GSM8KEnv(TextEnv[GSM8KTask]):
    r"""One grade-school word problem per episode.

    Description:
        The agent reasons in words and states a final number. Problems come from a file in GSM8K's
        format, from the hub, or from templates of our own.

    Action Space:
        Text with a final answer: `#### 42`, `\boxed{42}`, or "the answer is 42". Separators,
        currency, units, fractions, decimals and powers of ten are understood; see `answers`.
        More than one candidate is a wrong answer.

    Observation Space:
        Text: the prompt, then a word of feedback.

    Rewards:
        1 for the right number, else 0 (preset `exact_match`); see `RewardConfig`.

    Episode End:
        The first turn with a final answer ends in `success` or `failure`. With one turn, a text
        without a final answer ends in `invalid_action`. With more, it is a turn of thinking, and
        the last of them ends in `turn_limit`; only an empty action is invalid.

    Arguments:
        data: None (templates), a JSONL file with `question` and `answer`, a folder with
            `train.jsonl` and `test.jsonl`, or "hub" (the `datasets` package and a network).
        split: "train" or "test": of a folder or the hub, where None is "train"; or of the
            templates, whose numbers of one never come in the other, where None is all.
        prompt: "full", "compact", or "tools" for an agent that calls tools.
        oracle_lapses: share of the templates' steps in which the oracle adds, whatever the question
            asks for (`write_with_lapses`): for a warm start that leaves the meaning of words to RL.
        options: `EpisodeOptions`; one turn by default.

    Source:
        Cobbe et al., "Training Verifiers to Solve Math Word Problems", 2021.

    Version History:
        v0: first version.
    """

    has_quick_steps = True
    tools_module = "agentpeft.envs.gsm8k.tools"

    def __init__(
        self,
        data: str | Path | None = None,
        split: str | None = None,
        prompt: PromptStyle = "full",
        oracle_lapses: float = 0.0,
        **options: Unpack[EpisodeOptions],
    ) -> None:
        """Raises: SettingsError, DataError."""
        check_choice("prompt", prompt, get_args(PromptStyle))
        check_path("data", data, "a path, 'hub'")
        check_path("split", split, "a name")
        check_share("oracle_lapses", oracle_lapses)
        if oracle_lapses and data is not None:
            raise SettingsError("oracle_lapses is for the templates' problems, so without data")
        source: TaskSource[GSM8KTask] = (
            WordProblems(split) if data is None else load_gsm8k(data, split)
        )
        super().__init__(source, options)
        self.prompt_style: PromptStyle = prompt
        self.oracle_lapses = oracle_lapses
        self._gold = Fraction(0)

    def oracle_actions(self, task: GSM8KTask) -> Sequence[str]:
        """Returns the solution, which ends in `#### N`; see `oracle_lapses`."""
        if self.oracle_lapses:
            return [write_with_lapses(task, self.oracle_lapses)]
        return [task.solution]

    def _begin(self, task: GSM8KTask) -> str:
        gold = parse_number(task.answer)
        if gold is None:
            raise SettingsError(f"task {task.task_id!r} has no number as answer: {task.answer!r}")
        self._gold = gold
        return render_prompt(task, self.prompt_style, self.config.max_turns)

    def _act(self, action: str) -> Turn:
        answer = find_final_answer(action)
        if isinstance(answer, Fraction):
            if is_gold_number(answer, self._gold):
                return Turn("Correct.", Outcome.SUCCESS)
            return Turn("Wrong.", Outcome.FAILURE)
        if answer is NoAnswer.UNCLEAR:
            return Turn("Wrong: the final answer is not a single number.", Outcome.FAILURE)
        if self.config.max_turns == 1 or not action.strip():
            wanted = self.get_tools().advice if self.prompt_style == "tools" else "#### 3.5"
            return Turn(f"Invalid: no final answer, such as {wanted}.", Outcome.INVALID_ACTION)
        left = self.config.max_turns - len(self._turns) - 1
        return Turn(f"No final answer yet; turns left: {left}.")
