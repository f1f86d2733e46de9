"""How a recorded episode is played again: with the adapter that played it, or by its actions.

An episode's task is a function of seed and position, and an environment's answers of task and
actions; what a policy samples is a function of its weights and of seed, position, sample and turn.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from agentpeft.apps.lab.playing.branching import BranchingEngine
from agentpeft.apps.lab.playing.recorded import RecordedEpisode
from agentpeft.envs import Outcome, SettingsError, Task
from agentpeft.policies.delivery.version import make_version
from agentpeft.policies.engines.endpoint_chat import TextChat
from agentpeft.policies.engines.player import EngineFactory
from agentpeft.policies.engines.protocol import Engine
from agentpeft.policies.engines.transformers.engine import start_transformers
from agentpeft.policies.messages import AdapterVersion, EpisodeRecord, Ids, Trajectory
from agentpeft.policies.models.base_files import find_base
from agentpeft.policies.models.load import load_base
from agentpeft.policies.models.lora.attach_lora import attach_lora
from agentpeft.policies.models.policy_base import PolicyBase
from agentpeft.policies.rollout.chat import ChatFormat, FoundAction, open_chat
from agentpeft.policies.rollout.env_runner import EnvRunner
from agentpeft.policies.rollout.environments import Env
from agentpeft.policies.rollout.groups import GroupRequest
from agentpeft.policies.rollout.play import StepResult, play_episode, reward_for
from agentpeft.policies.rollout.scripted_play import ScriptedAgent, run_without_waiting
from agentpeft.policies.settings.config import Settings

_MAX_LOGPROB_CHANGE = 0.1


@dataclass(frozen=True)
class PlayedSample:
    """An episode in words and in tokens; `trajectory` is None where nothing was sampled.

    `tokens` are the texts of the trajectory's tokens, one by one.
    """

    record: EpisodeRecord
    trajectory: Trajectory | None
    tokens: tuple[str, ...]


@dataclass(frozen=True)
class ReplayedActions:
    """What recorded actions have led to now: the prompt, each step, and the end.

    `answers` are what the agent would have been told, turn by turn: one of tool calls may have
    several actions.
    """

    prompt: str
    actions: Sequence[str]
    results: Sequence[StepResult]
    answers: Sequence[str]
    outcome: Outcome
    episode_return: float


def play_again(recorded: RecordedEpisode) -> PlayedSample:
    """Samples an episode's group again with the adapter that played it; returns the episode.

    Raises: SettingsError, CheckpointError, EngineError.
    """
    settings, is_eval = recorded.settings, recorded.name.mode == "eval"
    num = settings.evaluation.samples_per_task if is_eval else settings.training.group_size
    version = recorded.record.adapter_version
    samples = _sample(recorded, settings, num, (version, recorded.checkpoint))
    for sample in samples:
        if sample.record.sample == recorded.record.sample:
            return sample
    raise SettingsError(f"{recorded.name}: its environment fails now, so it has no end")


def resample(
    recorded: RecordedEpisode,
    turn: int,
    num_samples: int,
    seed: int,
    version: tuple[int, Path | None],
) -> list[PlayedSample]:
    """Plays an episode's turns before `turn` as they were, and samples what follows.

    `version` is an adapter's number and checkpoint (None: what training began with). The turns
    before are tokenised from their texts. Raises: as `play_again`.
    """
    if recorded.settings.env_runners.engine == "scripted":
        raise SettingsError("--resample: the run's engine is scripted, so nothing can be sampled")
    if recorded.settings.env_runners.temperature == 0:
        raise SettingsError("--resample of equal samples: the run's env_runners.temperature is 0")

    def make_engine(settings: Settings, base: PolicyBase, chat: ChatFormat) -> Engine:
        first = [_encode(chat, said, settings) for said in recorded.said[: turn - 1]]
        engine = start_transformers(settings, base, chat)
        return BranchingEngine(engine, first, seed, settings.env_runners.temperature)

    limits = recorded.settings.env_runners.model_copy(update={"engine": "transformers"})
    settings = recorded.settings.model_copy(update={"env_runners": limits})
    return _sample(recorded, settings, num_samples, version, make_engine)


def _encode(chat: ChatFormat, said: str, settings: Settings) -> Ids:
    """Returns the tokens of a turn that was sampled so; `said` has what its template began."""
    end = settings.model.end_of_thought
    return chat.encode_turn(said if end and end in said else chat.strip_thoughts(said))


def _sample(
    recorded: RecordedEpisode,
    settings: Settings,
    num_samples: int,
    version: tuple[int, Path | None],
    make_engine: EngineFactory | None = None,
) -> list[PlayedSample]:
    """Returns `num_samples` episodes of the recorded one's task."""
    with recorded.open_tasks() as (stage, _, _):
        request = GroupRequest(recorded.record.group_id, num_samples, recorded.name.mode, stage)
    output = settings.output.model_copy(update={"loggers": ("episodes",)})
    settings = _warm_started(settings.model_copy(update={"output": output}), recorded.run)
    disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(settings.threads_per_env_runner)
    adapter, tokenizer = _load_version(settings, *version)
    with closing(EnvRunner(settings, make_engine=make_engine)) as runner:
        runner.load_adapter(adapter)
        groups, report = runner.sample([request])
    played = iter(groups[0].trajectories if groups else ())
    samples = []
    for record in report.records:
        trajectory = next(played) if record.num_turns else None
        ids = [] if trajectory is None else trajectory.token_ids[:, None].tolist()
        tokens = tuple(map(str, tokenizer.batch_decode(ids)))
        samples.append(PlayedSample(record, trajectory, tokens))
    return samples


def _warm_started(settings: Settings, run: Path) -> Settings:
    """Returns the settings with the run's warm-started adapter as their model, if it has one."""
    folder = run / "warm_start"
    return settings.with_model(name=str(folder), adapter=None) if folder.is_dir() else settings


def _load_version(
    settings: Settings, version: int, checkpoint: Path | None
) -> tuple[AdapterVersion, PreTrainedTokenizerBase]:
    """Returns a checkpoint's adapter (None: what training began with), and its tokenizer."""
    loaded = settings if settings.lora.use_lora else settings.with_model(dtype="float32")
    base = load_base(loaded, settings.env_runners.num_gpus_per_env_runner)
    policy = attach_lora(base, settings.lora, seed=settings.seed)
    if checkpoint is not None:
        policy.load(checkpoint / "adapter")
    weights = policy.adapter_weights()
    adapter = make_version(version, settings.experiment, weights, policy.scaling)
    return adapter, base.tokenizer


def find_difference(recorded: RecordedEpisode, played: PlayedSample) -> str | None:
    """Returns where an episode that was sampled again is another one; None where it is the same.

    Compared are all texts, the return, the outcome, the number of tokens and, where the run has
    recorded them, the tokens and their log-probabilities: these to a tenth, since the model played
    other episodes beside this one, and sums of another order differ, in 16 bits by some hundredths.
    """
    before, now = recorded.record, played.record
    for index, (old, new) in enumerate(zip(before.messages, now.messages, strict=False)):
        if old != new:
            return f"message {index + 1} was {old[1]!r:.80}, and is {new[1]!r:.80}"
    if recorded.tokens is not None and list(played.tokens) != recorded.tokens["tokens"]:
        return "other tokens were sampled, though they read the same"
    change = find_logprob_change(recorded, played)
    if change is not None and not change <= _MAX_LOGPROB_CHANGE:
        return f"a token's log-probability is {change:.2g} away"
    for name in ("episode_return", "outcome", "num_turns", "num_tokens", "messages"):
        old_value, new_value = getattr(before, name), getattr(now, name)
        if old_value != new_value:
            return f"its {name} was {old_value!r:.80}, and is {new_value!r:.80}"
    return None


def find_logprob_change(recorded: RecordedEpisode, played: PlayedSample) -> float | None:
    """Returns how far a log-probability is from the recorded one at most; None without a record."""
    before = (recorded.tokens or {}).get("sampling_logprobs")
    if before is None or played.trajectory is None:
        return None
    now = played.trajectory.sampling_logprobs[played.trajectory.loss_mask]
    if len(before) != len(now):
        return math.inf
    return float(np.abs(now - np.array(before)).max(initial=0.0))


def read_turns(recorded: RecordedEpisode) -> list[list[FoundAction]]:
    """Returns what the environment was told in each turn. Raises: SettingsError.

    Only a model's own tokenizer knows what its template puts before an action.
    """
    settings = _warm_started(recorded.settings, recorded.run)
    chat: ChatFormat = TextChat(settings.model)
    if not recorded.settings.is_tiny:  # whose template has nothing there
        chat = open_chat(find_base(settings)[1], settings)
    said = recorded.said[: len(recorded.observations)]
    return [chat.find_actions(text) for text in said]


def texts_of(turns: Iterable[Iterable[FoundAction]]) -> list[str]:
    """Returns all actions in order."""
    return [action.text for turn in turns for action in turn]


def read_answers(
    turns: Iterable[Iterable[FoundAction]], results: Iterable[StepResult]
) -> list[str]:
    """Returns what an agent is told in each turn whose first action has a result."""
    left = iter(results)
    answers = (
        [action.answer(result.observation) for action, result in zip(turn, left, strict=False)]
        for turn in turns
    )
    return ["\n".join(each) for each in answers if each]


@contextmanager
def began(recorded: RecordedEpisode) -> Iterator[tuple[Env, str, Task]]:
    """Yields an environment at the beginning of the episode, its prompt, and the task."""
    with recorded.open_tasks() as (_, pool, task):
        env, prompt = pool.begin(recorded.record.group_id, task)
        try:
            yield env, prompt, task
        finally:
            pool.give_back(env)


def play_actions_again(recorded: RecordedEpisode) -> ReplayedActions:
    """Plays the recorded actions against the environment. Raises: SettingsError, EnvFault."""
    turns = read_turns(recorded)
    actions = texts_of(turns)
    agent = ScriptedAgent(actions)
    with began(recorded) as (env, prompt, _):
        outcome = run_without_waiting(play_episode(env, agent))
        rewards = [result.reward for result in agent.results]
        if outcome is None and recorded.record.outcome is Outcome.CONTEXT_LIMIT:
            outcome = Outcome.CONTEXT_LIMIT  # the agent ended it, not the environment
            rewards.append(reward_for(env, outcome))
    answers = read_answers(turns, agent.results)
    ended, total = outcome or Outcome.ONGOING, float(sum(rewards))
    return ReplayedActions(prompt, actions, agent.results, answers, ended, total)


def find_other_answer(recorded: RecordedEpisode, now: ReplayedActions) -> str | None:
    """Returns where an environment answers otherwise than it did; None where it nowhere does.

    Compared are the prompt, all observations, the return and the outcome.
    """
    if problem := find_other_text(recorded, (now.prompt, *now.answers)):
        return problem
    before = recorded.record
    compared = {
        "number of turns": (len(recorded.observations), len(now.answers)),
        "outcome": (before.outcome.value, now.outcome.value),
        "return": (before.episode_return, now.episode_return),
    }
    for name, (was, is_now) in compared.items():
        if was != is_now:
            return f"its {name} was {was}, and is {is_now}"
    return None


def find_other_text(recorded: RecordedEpisode, texts: Sequence[str]) -> str | None:
    """Returns where the prompt, or an observation after it, is another than recorded.

    Texts beyond those of the shorter one are not compared.
    """
    before = recorded.prompt, *recorded.observations
    for turn, (old, new) in enumerate(zip(before, texts, strict=False)):
        if old != new:
            place = f"the observation of turn {turn}" if turn else "the prompt"
            return f"{place} was {old!r:.80}, and is {new!r:.80}"
    return None
