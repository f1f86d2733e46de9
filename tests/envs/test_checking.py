"""`check_text_env` passes a sound environment and names what is wrong with others."""

import itertools
from dataclasses import dataclass, field, replace

import gymnasium
import pytest
from gymnasium.spaces import Text
from toy_env import EchoEnv, EchoSource, EchoTask

from agentpeft.envs import Outcome, check_text_env
from agentpeft.envs.core.checking import EnvContractError
from agentpeft.envs.core.text_env import Turn


def test_a_sound_environment_passes():
    check_text_env(EchoEnv())
    check_text_env(gymnasium.wrappers.OrderEnforcing(EchoEnv()), seed=3, num_tasks=5)


class SaysMoreThanIsNeeded(EchoEnv):
    def oracle_actions(self, task):
        return [task.word, "done"]


class KnowsAnyText(EchoEnv):
    """Any text is a task."""

    def __init__(self, **options):
        super().__init__(**options)
        known = self.task_source.get
        self.task_source.get = lambda task_id: replace(known("echo/1"), task_id=task_id)


@dataclass(frozen=True, kw_only=True)
class MemoTask(EchoTask):
    said: list[str] = field(default_factory=list, compare=False)


@dataclass(frozen=True, kw_only=True)
class ListTask(EchoTask):
    said: list[str] = field(default_factory=list)


class Memorizes(EchoEnv):
    """Notes in its task what was said."""

    kind = MemoTask

    def _choose_task(self, options):
        task = super()._choose_task(options)
        return task if isinstance(task, self.kind) else self.kind(**vars(task))

    def _act(self, action):
        self.task.said.append(action)
        return super()._act(action)


class ChangesItsTask(Memorizes):
    kind = ListTask


@pytest.mark.parametrize("env_class", [SaysMoreThanIsNeeded, KnowsAnyText, Memorizes])
def test_an_unusual_environment_passes(env_class):
    check_text_env(env_class())


class HidesTheLimit(EchoEnv):
    def _begin(self, task):
        return f"Say '{task.word}' (30 other words follow)."


class RewardsSilence(EchoEnv):
    def _act(self, action):
        return Turn("", Outcome.SUCCESS) if not action else super()._act(action)


class OracleFails(EchoEnv):
    def oracle_actions(self, task):
        return ["please"]


class Forgets(EchoEnv):
    counter = itertools.count()

    def _act(self, action):
        return Turn(f"{next(self.counter)}", super()._act(action).outcome)


class StockSpace(EchoEnv):
    def __init__(self, **options):
        super().__init__(**options)
        self.observation_space = Text(10_000)


class Punishes(EchoEnv):
    def __init__(self, **options):
        super().__init__(reward={"success": -1.0}, **options)


class Truncates(EchoEnv):
    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, terminated, info


class KeepsItsBag(EchoEnv):
    """What was asked for politely stays so in the next episode."""

    bag: tuple[str, ...] = ()

    def _act(self, action):
        self.bag = (*self.bag, action) if action == "please" else self.bag
        if action != self.task.word or self.bag:
            return super()._act(action)
        return Turn("You have not asked.")


class RaisesOnMistakes(EchoEnv):
    def _act(self, action):
        return super()._act(action if " banana" not in action else int(action))


class AssertsOnMistakes(EchoEnv):
    def _act(self, action):
        assert " banana" not in action, "digits!"
        return super()._act(action)


class RaisesOnUnknownIds(EchoEnv):
    def __init__(self, **options):
        super().__init__(**options)
        known = self.task_source.get
        self.task_source.get = lambda task_id: known(f"echo/{int(task_id.removeprefix('echo/'))}")


class SaysNothing(EchoEnv):
    def _act(self, action):
        turn = super()._act(action)
        return turn if turn.outcome is Outcome.SUCCESS else Turn(None)


class FallsThrough(EchoEnv):
    def _act(self, action):
        return super()._act(action) if action else None


class HasNoPrompt(EchoEnv):
    def _begin(self, task):
        super()._begin(task)


class KnowsAllIds(EchoEnv):
    def __init__(self, **options):
        super().__init__(**options)
        self.task_source.get = lambda task_id: EchoSource.get(self.task_source, "echo/1")


class HasOneSkill(EchoEnv):
    def _choose_task(self, options):
        return replace(super()._choose_task(options), skills="even")


@pytest.mark.parametrize(
    ("env_class", "message"),
    [
        (KeepsItsBag, "after an episode that was left in its middle"),
        (RaisesOnMistakes, "ValueError: .* banana': an agent's mistake is a Turn that says so"),
        (AssertsOnMistakes, "AssertionError: digits!.*; raised at the action '.* banana'"),
        (SaysNothing, "SaysNothing: prompts and observations must be a str, got None"),
        (FallsThrough, r"FallsThrough\._act must return a Turn, got None"),
        (HasNoPrompt, "HasNoPrompt: prompts and observations must be a str, got None"),
        (RaisesOnUnknownIds, "ValueError: .*raised by get.*must raise UnknownTaskError"),
        (KnowsAllIds, "an unknown id must raise UnknownTaskError"),
        (ChangesItsTask, "an episode changes its task 'echo/.*': let _begin copy"),
        (HasOneSkill, "a task's skills must be a tuple, got 'even'"),
        (HidesTheLimit, "does not state the turn limit 3: let _begin return a text"),
        (RewardsSilence, "empty actions end in success"),
        (OracleFails, "oracle actions for 'echo/.*' end in ongoing"),
        (Forgets, "Deterministic step observations"),
        (StockSpace, "observation_space must be Unicode"),
        (Punishes, "empty actions earn 0.0, the oracle earns -"),
        (Truncates, "terminated, not truncated"),
    ],
)
def test_a_broken_environment_is_named(env_class, message):
    with pytest.raises(EnvContractError, match=message):
        check_text_env(env_class())


def test_another_kind_of_environment_is_refused():
    with pytest.raises(EnvContractError, match="CartPoleEnv is not a TextEnv"):
        check_text_env(gymnasium.make("CartPole-v1"))
