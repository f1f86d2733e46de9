"""`AgentPEFT/Arithmetic-v0`: problems of plain arithmetic, graded by exact match."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias, Unpack
from zlib import crc32

from agentpeft.envs.arithmetic.operations import get_operation
from agentpeft.envs.arithmetic.tasks import ArithmeticGenerator, ArithmeticTask
from agentpeft.envs.core.errors import (
    SettingsError,
    check_choice,
    check_count,
    check_share,
    shown,
)
from agentpeft.envs.core.rewards import Outcome
from agentpeft.envs.core.text_env import EpisodeOptions, TextEnv, Turn
from agentpeft.envs.tasks.task import Split

if TYPE_CHECKING:  # most environments have one level
    from agentpeft.envs.tasks.difficulty import AdaptiveDifficulty

DigitRange: TypeAlias = int | Sequence[int]
_PLAIN = re.compile(r"0|-?[1-9][0-9]*")
_REVERSED = re.compile(r"[0-9]+-?")


class ArithmeticEnv(TextEnv[ArithmeticTask]):
    """One arithmetic problem per episode.

    Description:
        The agent sees `12+34=` and replies with the number. A problem is drawn from an endless
        generator; its id (`addition:12+34:plain`) is enough to make it again.

    Action Space:
        Text that is the answer and nothing else (white space around it is dropped). Plain: an
        integer in its shortest form (`46`, `-3`, `0`; not `046`, `+46`, `4 6` or `46.`).
        Reversed: decimal digits, least significant first, padded with zeros to the width that the
        prompt names. Worked: the same, and working may stand before it, ended by `=`: what counts
        is behind the last one. Other text is an invalid action.

    Observation Space:
        Text: the prompt, then a word of feedback.

    Rewards:
        Exact match: 1 for the right answer, else 0 (preset `exact_match`); see `RewardConfig`.
        Where difficulty is adaptive, each level pays 1 more (the spread of the rewards) than the
        one below, right or wrong, so that staying easy by failing on purpose never pays.

    Episode End:
        The right answer ends in `success`. A wrong one ends in `failure` at the last turn; before
        it the agent may try again. An invalid action ends in `invalid_action`.

    Arguments:
        operations: names of registered operations; each is equally likely.
        num_digits: digits of each operand, or (fewest, most), drawn for each operand alone.
        format: "plain", or "reversed" with the width of the most digits: for at most 3 digits
            12+345 is `210+543=` with the answer `7530`; or "worked": reversed, with room for
            working, so that 12*34 is `21*43=` with, say, `8400+0630=8040`.
        adaptive: True, or a mapping of `window`, `raise_at` and `lower_at`. The operands' digits
            then start at the fewest and follow the outcomes of drawn tasks, so a prompt depends on
            the seed and on the outcomes before it. A `reward_fn` replaces what a level pays too.
        prompt: "full", "compact" (`1 try: 12+34=`), "named", which is the compact one with the
            format (`1 try, reversed: 21+43=`), or "tools" for an agent that calls tools.
        oracle_lapses: share of the tasks in which the oracle takes plain numbers for reversed ones,
            or the other way round, and answers as it reads them, without working. What learns from
            it can do both, and leaves to the reward what the format's name means.
        oracle_omits: characters of its working, in front, that the oracle leaves out, for imitation
            in stages: who has learnt to do without the first one learns to do without the next,
            until the answer stands alone. Format "worked" alone.
        oracle_omits_more: share of the tasks in which it leaves out a character more than that, of
            which the same share another, and so on: a preview of the next stages, without which
            a learner forgets how to do without at each of them (removal smoothing).
        split: "train" or "test": problems of one never come in the other; None is all.
        options: `EpisodeOptions`; one turn by default.

    Source:
        Reversed fixed-width digits, and working: Lee et al., "Teaching Arithmetic to Small
        Transformers", 2023. What the oracle omits: Deng et al., "From Explicit CoT to Implicit
        CoT", 2024.

    Version History:
        v0: first version.
    """

    has_quick_steps = True
    tools_module = "agentpeft.envs.arithmetic.tools"

    def __init__(  # noqa: PLR0913 (settings, by name)
        self,
        operations: Sequence[str] = ("addition",),
        num_digits: DigitRange = 2,
        format: Literal["plain", "reversed", "worked"] = "plain",  # noqa: A002 (the setting's plain name)
        adaptive: bool | Mapping[str, float] = False,
        prompt: Literal["full", "compact", "named", "tools"] = "full",
        *,
        oracle_lapses: float = 0.0,
        oracle_omits: int = 0,
        oracle_omits_more: float = 0.0,
        split: Split | None = None,
        **options: Unpack[EpisodeOptions],
    ) -> None:
        """Raises: SettingsError."""
        check_choice("format", format, ("plain", "reversed", "worked"))
        check_choice("prompt", prompt, ("full", "compact", "named", "tools"))
        check_share("oracle_lapses", oracle_lapses)
        check_count("oracle_omits", oracle_omits, least=0)
        check_share("oracle_omits_more", oracle_omits_more)
        names = [operations] if isinstance(operations, str) else operations
        if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
            raise SettingsError(f"operations are names, got {shown(operations)}")
        digits = _digit_range(num_digits)
        width, is_worked = None if format == "plain" else digits[1], format == "worked"
        chosen = tuple(map(get_operation, names))
        self._generator = ArithmeticGenerator(chosen, digits, width, split, is_worked)
        super().__init__(self._generator, options)
        self.prompt_style, self.oracle_lapses = prompt, oracle_lapses
        self.oracle_omits, self.oracle_omits_more = oracle_omits, oracle_omits_more
        for name in ("oracle_omits", "oracle_omits_more"):
            if vars(self)[name] and not (is_worked and any(one.work for one in chosen)):
                raise SettingsError(f"{name} needs format='worked', and an operation with working")
        self._difficulty: AdaptiveDifficulty | None = None
        if adaptive is not False:
            from agentpeft.envs.arithmetic.difficulty import make_difficulty, reward_by_level

            self._difficulty = make_difficulty(digits, adaptive)
            self.reward_config = reward_by_level(
                self.reward_config, self._difficulty, self.config.max_turns
            )
            self._take_level(self._difficulty.level)

    @property
    def difficulty(self) -> int | None:
        """The present level (digits per operand) where difficulty is adaptive, else None."""
        return None if self._difficulty is None else self._difficulty.level

    def oracle_actions(self, task: ArithmeticTask) -> Sequence[str]:
        """Returns the answer, behind working where there is room for it.

        See `oracle_lapses`, `oracle_omits` and `oracle_omits_more`.
        """
        if _compute_share(f"lapse {task.task_id}") < self.oracle_lapses:
            from agentpeft.envs.arithmetic.lapses import misread

            return [misread(task)]
        work, num_omitted = task.work or "", self.oracle_omits
        drawn, share = _compute_share(f"omit {num_omitted} {task.task_id}"), self.oracle_omits_more
        while drawn < share and num_omitted < len(work):
            num_omitted, share = num_omitted + 1, share * self.oracle_omits_more
        return [work[num_omitted:] + task.answer]

    def _begin(self, task: ArithmeticTask) -> str:
        limit = self.config.max_turns
        if self.prompt_style in ("compact", "named"):
            name = f", {task.format}" if self.prompt_style == "named" else ""
            return f"{limit} {'try' if limit == 1 else 'tries'}{name}: {task.instruction}"
        turns = "1 try" if limit == 1 else f"{limit} tries (one per turn)"
        verb = "Submit" if self.prompt_style == "tools" else "Reply with"
        return f"Compute {task.instruction}\n{_explain(task, verb)}\nYou have {turns}."

    def _act(self, action: str) -> Turn:
        answer = action if self.task.work is None else action.rpartition("=")[2]
        answer = answer.strip()
        if answer == self.task.answer:
            return Turn("Correct.", Outcome.SUCCESS)
        syntax = _PLAIN if self.task.width is None else _REVERSED
        if syntax.fullmatch(answer) is None:
            verb = "submit" if self.prompt_style == "tools" else "reply with"
            return Turn(f"Invalid: {verb} the number alone.", Outcome.INVALID_ACTION)
        if len(self._turns) + 1 < self.config.max_turns:
            return Turn("Wrong. Try again.")
        return Turn("Wrong.", Outcome.FAILURE)

    def _end(self, outcome: Outcome) -> None:
        difficulty = self._difficulty
        if difficulty is None or self.task.num_digits != difficulty.level:
            return  # a given task of another level does not count
        if difficulty.record(outcome is Outcome.SUCCESS):
            self._take_level(difficulty.level)

    def _take_level(self, num_digits: int) -> None:
        self.task_source = replace(self._generator, num_digits=(num_digits, num_digits))


def _compute_share(text: str) -> float:
    """Returns a number in [0, 1) by a text's hash."""
    return crc32(text.encode()) / 2**32


def _explain(task: ArithmeticTask, verb: str) -> str:
    if task.width is None:
        return f"{verb} the number alone: digits, no zeros in front, a minus sign if negative."
    end = (
        "and nothing else" if task.work is None else "behind your working and an = if you need any"
    )
    return (
        "Numbers are written backwards here, least significant digit first, padded with zeros: 12 "
        f"as 4 digits is 2100. {verb} the {len(task.answer.rstrip('-'))} digits of the result, "
        f"written the same way, {end}."
    )


def _digit_range(num_digits: DigitRange) -> tuple[int, int]:
    match num_digits:
        case (int(low), int(high)) | (int(low) as high) if type(low) is type(high) is int:
            return low, high
    got = shown(num_digits)
    raise SettingsError(f"num_digits must be an integer or (fewest, most), got {got}")
