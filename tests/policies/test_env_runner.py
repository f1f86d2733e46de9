import asyncio
import re
import time
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
import word_env
from word_runs import make_settings

from agentpeft.envs import DataError, Outcome, UnknownTaskError
from agentpeft.envs.core.rewards import RewardConfig
from agentpeft.policies.delivery.version import make_version
from agentpeft.policies.engines.player import make_player
from agentpeft.policies.engines.scripted import ScriptedEngine
from agentpeft.policies.errors import EngineError, EnvironmentBugError
from agentpeft.policies.rollout.chat import ChatFormat
from agentpeft.policies.rollout.env_runner import EnvRunner
from agentpeft.policies.rollout.groups import GroupRequest
from agentpeft.policies.rollout.play import reward_for
from agentpeft.policies.settings.environment_kwargs import without_training_rewards


@pytest.fixture
def build(small_base):
    """Returns runners that say what a script says; a script of None is the settings' engine."""
    word_env.HEARD.clear()
    word_env.FAULTS.clear()
    made = []

    def start(script, *overrides):
        settings = make_settings(*overrides)
        limit = settings.env_runners.max_context_tokens
        make_engine = script and (lambda s, b, chat: ScriptedEngine(chat, script, limit))
        made.append(EnvRunner(settings, make_player(settings, small_base, make_engine)))
        return made[-1]

    yield start
    for runner in made:
        runner.close()


def play(runner, *requests):
    groups, report = runner.sample([GroupRequest(*request) for request in requests])
    return groups, report


def test_the_mask_covers_what_was_sampled_and_the_environment_hears_it(build, small_base):
    texts = ["one", "two", "three", "four"]
    (group,), _ = play(build(lambda session, turn: texts[turn]), (0, 2))
    chat = ChatFormat(small_base.tokenizer)
    for trajectory in group.trajectories:
        ids, expected = trajectory.prompt_ids, []
        for text in texts:
            action = chat.encode_action(text)
            delta = chat.extend(np.concatenate([ids, action]), "Go on.")
            expected += [(action, True), (delta, False)]
            ids = np.concatenate([ids, action, delta])
        parts = expected[:-1]
        masks = [np.full(len(part), is_sampled) for part, is_sampled in parts]
        assert trajectory.token_ids.tolist() == np.concatenate([p for p, _ in parts]).tolist()
        assert trajectory.loss_mask.tolist() == np.concatenate(masks).tolist()
        ends = np.cumsum([len(part) for part, _ in parts])[::2]
        assert trajectory.turn_ends == tuple(ends.tolist())
    heard = [action for _, action in word_env.HEARD]
    assert sorted(heard) == sorted(texts * 2)


def test_records_tell_episodes_in_words(build):
    runner = build(lambda session, turn: "hello")
    (group,), report = play(runner, (5, 1))
    (record,) = report.records
    word = group.task_id.removeprefix("word/")
    assert record.messages[:3] == (
        ("user", f"Say {word} in 4 turns."),
        ("assistant", "hello"),
        ("user", "Go on."),
    )
    assert (record.outcome, record.num_turns, record.group_id) == (Outcome.TURN_LIMIT, 4, 5)
    assert (
        record.num_tokens
        == group.trajectories[0].loss_mask.sum()
        == report.counts.num_sampled_tokens
    )
    _, quiet = play(build(lambda session, turn: "hello", "output.loggers=[]"), (5, 1))
    assert quiet.records[0].messages == ()


def test_the_scripted_engine_plays_the_oracle(build):
    groups, report = play(build(None, "env_runners.engine=scripted"), (0, 3), (1, 3))
    assert [t.turn_rewards for g in groups for t in g.trajectories] == [(0.0, 1.0)] * 6
    assert report.metrics()["outcome/success"] == 6


def test_a_position_is_the_same_task_for_all_runners_and_another_for_evaluation(build):
    runners = [build(lambda session, turn: "no") for _ in range(2)]
    first, _ = play(runners[0], (0, 2), (1, 2), (2, 2))
    second, _ = play(runners[1], (2, 1), (0, 1))
    assert [g.task_id for g in second] == [first[0].task_id, first[2].task_id]
    prompts = [{t.prompt_ids.tobytes() for t in g.trajectories} for g in first]
    assert [len(p) for p in prompts] == [1, 1, 1]
    held_out = [play(runner, (0, 1, "eval"))[0][0].task_id for runner in (*runners, runners[0])]
    assert len(set(held_out)) == 1
    assert held_out[0] != first[0].task_id


def test_evaluation_has_its_own_environment(build):
    runner = build(lambda session, turn: "no", 'evaluation.env_kwargs.hint="Held out."')
    texts = [play(runner, (0, 1, mode))[1].records[0].messages[2][1] for mode in ("train", "eval")]
    assert texts == ["Go on.", "Held out."]


OPEN = set()
"""The hints of environments that have begun an episode and are not closed."""


class OpenEnv(word_env.WordEnv):
    def _begin(self, task):
        OPEN.add(self.hint)
        return super()._begin(task)

    def _release(self):
        OPEN.discard(self.hint)


gymnasium.register("Tests/Open-v0", OpenEnv)


def test_a_stage_has_its_own_environments_which_are_closed_when_it_is_over(build):
    stages = 'curriculum.stages=[{hint="One."},{hint="Two."}]'
    runner = build(lambda session, turn: "no", "environment.id=Tests/Open-v0", stages)
    answers, still_open = [], []
    for mode, stage in (("train", 0), ("eval", 0), ("train", 1), ("train", 0)):
        _, report = play(runner, (0, 1, mode, stage))
        answers.append(report.records[0].messages[2][1])
        still_open.append(OPEN - {"Go on."})
    assert answers == ["One.", "Go on.", "Two.", "One."]
    assert still_open == [{"One."}, {"One."}, {"Two."}, {"One."}]


def task_of(runner, position):
    return runner.sample([GroupRequest(position, 1)])[0][0].task_id


def three_per_turn(episode):
    """A reward for every turn, by name: `test_env_runner:three_per_turn`."""
    assert episode.turns
    return 3.0


def test_a_reward_for_turns_is_for_training_alone(build):
    reward = "environment.kwargs.reward={turn_reward_fn='test_env_runner:three_per_turn'}"
    runner = build(lambda session, turn: "no", reward)
    (group,), report = play(runner, (0, 1, "train"))
    assert group.trajectories[0].turn_rewards == (3.0,) * 4
    assert report.records[0].episode_return == 12.0
    (group,), report = play(runner, (0, 1, "eval"))
    assert group.trajectories[0].turn_rewards == (0.0,) * 4
    assert report.records[0].episode_return == 0.0


def test_partial_credit_is_for_training_alone():
    reward = {"preset": "db", "turn_reward_fn": "m:f"}
    kwargs = {"partial_credit": 0.5, "split": "train", "reward": reward}
    assert without_training_rewards(kwargs) == {"split": "train", "reward": {"preset": "db"}}
    assert without_training_rewards({"reward": "db"}) == {"reward": "db"}
    source = {"name": "tables", "kwargs": kwargs}
    for mixture in ({"sources": [source]}, {"sources": (source,), "split": "train"}):
        left = without_training_rewards(mixture)
        assert not {"m:f", "partial_credit"} & set(re.findall(r"[\w:]+", repr(left)))
        assert type(left["sources"]) is type(mixture["sources"])
    own = RewardConfig(turn_reward_fn="test_env_runner:three_per_turn")
    for kwargs in ({"reward": own}, {"reward": {"preset": own}}):
        assert "three_per_turn" not in repr(without_training_rewards(kwargs))


def test_an_episode_is_played_again_after_a_fault_in_a_fresh_environment(build):
    runner = build(lambda session, turn: "fault")
    word_env.FAULTS[task_of(runner, 0)] = 2
    num_made = word_env.WordEnv.num_made
    (group, _), report = play(runner, (0, 1), (1, 1))
    assert (report.counts.num_faults, report.counts.num_retries, report.dropped_group_ids) == (
        2,
        2,
        (),
    )
    assert len(group.trajectories[0].turn_rewards) == 4
    assert word_env.WordEnv.num_made > num_made


def test_a_group_that_keeps_failing_is_dropped_and_the_others_are_kept(build):
    runner = build(lambda session, turn: "fault")
    word_env.FAULTS[task_of(runner, 1)] = 1000
    groups, report = play(runner, (0, 2), (1, 2), (2, 2))
    assert [group.group_id for group in groups] == [0, 2]
    assert report.dropped_group_ids == (1,)
    assert report.counts.num_faults == 8
    assert {record.group_id for record in report.records} == {0, 2}
    assert report.adapter_versions == (0, 0)


class BrokenEnv(word_env.PlainEnv):
    """Returns what it was told to, instead of a step's five values."""

    def __init__(self, **changes):
        self.changes = changes

    def step(self, action):
        whole = {"observation": "", "reward": 1.0, "over": True, "cut": False, "info": {}}
        returned = tuple({**whole, **self.changes}.values())
        return returned[: self.changes.get("length", 5)]


gymnasium.register("Tests/Broken-v0", BrokenEnv)


BROKEN = "environment Tests/Broken-v0, task 'Tests/Broken-v0#3', episode train-000000003-0000"


@pytest.mark.parametrize(
    ("reward", "shown"),
    [("nan", "nan"), ("-inf", "-inf"), ("1e38", "1e.38"), ('"much"', "'much'"), ("[]", r"\[\]")],
)
def test_a_reward_that_is_no_number_ends_the_run_with_its_place(build, reward, shown):
    broken = ["environment.id=Tests/Broken-v0", f"environment.kwargs.reward={reward}"]
    message = f"{BROKEN}: turn 1: .* a reward must be a number of at most ±1e.06, is {shown}"
    with pytest.raises(EnvironmentBugError, match=message):
        play(build(lambda session, turn: "yes", *broken), (3, 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("observation=3", "the observation must be text, is 3"),
        ("info=7", "the info must be a dict, is 7"),
        ("length=4", "step() must return five values, returned ('', 1.0, True, False)"),
    ],
)
def test_what_no_step_may_return_is_a_fault_that_names_its_place(build, change, message):
    broken = ["environment.id=Tests/Broken-v0", f"environment.kwargs.{change}"]
    runner = build(lambda session, turn: "yes", *broken)
    groups, report = play(runner, (3, 1))
    assert (groups, report.counts.num_faults, report.dropped_group_ids) == ([], 4, (3,))
    assert report.last_fault.startswith(f"{BROKEN}: turn 1: ")
    assert message in report.last_fault


def test_a_hanging_step_is_a_fault(build):
    runner = build(lambda session, turn: "hang", "env_runners.episode_timeout_s=1")
    word_env.FAULTS[task_of(runner, 0)] = 1
    start_s = time.monotonic()
    (group,), report = play(runner, (0, 1))
    assert time.monotonic() - start_s < 2.5  # it hangs for 3 s
    assert (report.counts.num_faults, group.trajectories[0].outcome) == (1, Outcome.TURN_LIMIT)


def test_a_full_context_ends_the_episode_without_a_word_to_the_environment(build):
    reward, few = 'environment.kwargs.reward="db"', "env_runners.max_new_tokens=10"
    (group,), _ = play(build(lambda s, t: "hello", reward), (0, 1))
    whole = group.trajectories[0]
    limit = len(whole.prompt_ids) + whole.turn_ends[0] + 2
    word_env.HEARD.clear()
    runner = build(lambda s, t: "hello", reward, f"env_runners.max_context_tokens={limit}", few)
    (group,), _ = play(runner, (0, 1))
    cut = group.trajectories[0]
    assert cut.outcome is Outcome.CONTEXT_LIMIT
    assert cut.turn_rewards == (-0.1,)
    assert cut.token_ids.tolist() == whole.token_ids[: whole.turn_ends[0]].tolist()
    assert [action for _, action in word_env.HEARD] == ["hello"]


def test_a_full_context_in_a_mixture_has_the_reward_of_its_source():
    source = {"name": "sums", "id": "AgentPEFT/Arithmetic-v0"}
    source["kwargs"] = {"reward": {"context_limit": -3.0}}
    env = gymnasium.make("AgentPEFT/Mixture-v0", sources=[source])
    env.reset(seed=0)
    assert reward_for(env, Outcome.CONTEXT_LIMIT) == -3.0


@pytest.mark.parametrize("reward_fn", [lambda _: None, lambda episode: episode.score])
def test_a_broken_reward_function_is_a_bug_where_the_context_is_full_too(reward_fn):
    env = gymnasium.make("AgentPEFT/Arithmetic-v0", reward={"reward_fn": reward_fn})
    env.reset(seed=0)
    with pytest.raises(EnvironmentBugError, match="reward_fn"):
        reward_for(env, Outcome.CONTEXT_LIMIT)


def test_a_turn_cut_by_the_context_is_learnt_from_but_not_acted_on(build):
    (group,), _ = play(build(lambda s, t: "hello"), (0, 1))
    limit = len(group.trajectories[0].prompt_ids) + 2
    word_env.HEARD.clear()
    extra = f"env_runners.max_context_tokens={limit}"
    (group,), report = play(
        build(lambda s, t: "hello", extra, "env_runners.max_new_tokens=3"), (0, 1)
    )
    assert group.trajectories[0].loss_mask.tolist() == [True, True]
    assert group.trajectories[0].turn_rewards == (0.0,)
    assert report.records[0].outcome is Outcome.CONTEXT_LIMIT
    assert word_env.HEARD == []


def test_a_prompt_that_fills_the_context_has_no_turns(build):
    runner = build(
        lambda s, t: "hello", "env_runners.max_context_tokens=5", "env_runners.max_new_tokens=2"
    )
    (group,), report = play(runner, (0, 1))
    assert (len(group.trajectories[0].token_ids), group.trajectories[0].turn_rewards) == (0, ())
    assert report.records[0].num_turns == 0


def test_an_action_without_its_end_is_sent_as_it_is(build, small_base):
    chat = ChatFormat(small_base.tokenizer)
    text = "a long action"
    runner = build(lambda s, t: text, "env_runners.max_new_tokens=2")
    (group,), _ = play(runner, (0, 1))
    heard = chat.decode(chat.encode_action(text)[:2])
    assert [action for _, action in word_env.HEARD] == [heard] * 4
    first = group.trajectories[0].token_ids[: group.trajectories[0].turn_ends[0]]
    assert first.tolist() == chat.encode_action(text)[:2].tolist()


class RecordingEngine(ScriptedEngine):
    seeds: ClassVar[list[tuple[int, ...]]] = []

    async def generate(self, request):
        self.seeds.append(request.seed)
        return await super().generate(request)


def test_another_attempt_samples_other_actions(small_base):
    RecordingEngine.seeds.clear()
    word_env.FAULTS.clear()
    say = lambda session, turn: "fault"  # noqa: E731
    make_engine = lambda s, b, chat: RecordingEngine(chat, say)  # noqa: E731
    settings = make_settings()
    runner = EnvRunner(settings, make_player(settings, small_base, make_engine))
    word_env.FAULTS[task_of(runner, 0)] = 2
    RecordingEngine.seeds.clear()
    play(runner, (0, 1))
    assert len(set(RecordingEngine.seeds)) == len(RecordingEngine.seeds) == 2 + 4
    assert [len(seed) for seed in RecordingEngine.seeds[:2]] == [5, 6]
    runner.close()


def test_turns_that_are_cut_at_the_limit_of_tokens_are_counted(build):
    few = "env_runners.max_new_tokens=3"
    _, report = play(build(lambda session, turn: "hello, hello, hello", few), (0, 2))
    assert report.metrics()["num_cut_turns"] == 8
    _, report = play(build(lambda session, turn: "no"), (0, 2))
    assert report.metrics()["num_cut_turns"] == 0


class SlowEngine(ScriptedEngine):
    """Says nothing for a minute in the turns of some episodes."""

    slow = ("0001",)

    async def generate(self, request):
        if request.session.endswith(self.slow) and request.seed[-1] == 1:
            await asyncio.sleep(60)
        return await super().generate(request)


def test_slow_service_is_no_fault_of_the_episode_which_leaves_its_group(small_base):
    settings = make_settings("env_runners.episode_timeout_s=0.5", 'environment.kwargs.reward="db"')
    say = lambda session, turn: "hello"  # noqa: E731
    player = make_player(settings, small_base, lambda s, b, chat: SlowEngine(chat, say))
    runner = EnvRunner(settings, player)
    (group,), report = play(runner, (0, 3))
    assert [t.outcome for t in group.trajectories] == [Outcome.TURN_LIMIT] * 2
    assert [record.sample for record in report.records] == [0, 2]
    assert (report.counts.num_slow_episodes, report.counts.num_faults) == (1, 0)
    assert report.metrics()["num_slow_episodes"] == 1
    runner.close()


def test_a_group_whose_episodes_were_all_too_slow_is_dropped(small_base):
    settings = make_settings("env_runners.episode_timeout_s=0.3")
    say = lambda session, turn: "hello"  # noqa: E731
    player = make_player(settings, small_base, lambda s, b, chat: SlowEngine(chat, say))
    runner = EnvRunner(settings, player)
    groups, report = play(runner, (0, 1), (1, 1))
    assert len(groups) == 2 and report.counts.num_slow_episodes == 0
    SlowEngine.slow = ("0000", "0001")
    groups, report = play(runner, (0, 2))
    SlowEngine.slow = ("0001",)
    assert (groups, report.dropped_group_ids, report.counts.num_slow_episodes) == ([], (0,), 2)
    assert "was not over after env_runners.episode_timeout_s 0.3" in report.last_fault
    runner.close()


class StepwiseEngine(ScriptedEngine):
    """Takes a moment for each turn, and notes by which version it was to be sampled."""

    def __init__(self, *args):
        super().__init__(*args)
        self.asked = []

    async def generate(self, request):
        self.asked.append(request.adapter_version)
        await asyncio.sleep(0.1)
        return await super().generate(request)


@pytest.mark.parametrize(("newest", "is_too_old"), [(1, False), (2, True)])
def test_an_adapter_is_delivered_between_the_turns_of_an_episode(small_base, newest, is_too_old):
    engines = []

    def make_engine(settings, base, chat):
        engines.append(StepwiseEngine(chat, lambda session, turn: "hello"))
        return engines[0]

    settings = make_settings("max_adapter_lag=1")
    runner = EnvRunner(settings, make_player(settings, small_base, make_engine))
    runner.take([GroupRequest(0, 1), GroupRequest(0, 1, "eval")])
    while len(engines[0].asked) < 2:
        time.sleep(0.01)
    runner.load_adapter(make_version(newest, "run", {}, 1.0))
    played = {}
    while len(played) < 2:
        _, finished = runner.collect(2, until_room=False)
        played |= {group.request.mode: group for group in finished}
    assert engines[0].asked[:2] == [0, 0] and engines[0].asked[-1] == newest
    assert engines[0].asked == sorted(engines[0].asked)
    assert (played["eval"].is_whole, played["eval"].version) == (True, 0)
    assert len(played["eval"].records) == 1
    assert (played["train"].is_left_out, played["train"].is_whole) == (is_too_old, not is_too_old)
    assert played["train"].version == 0
    groups, _ = play(runner, (1, 1))
    assert groups[0].adapter_version == newest
    runner.close()


def test_a_plain_environment_is_seeded_by_position(build):
    runners = [build(lambda s, t: "yes", "environment.id=Tests/Plain-v0") for _ in range(2)]
    (first, other), report = play(runners[0], (3, 2), (4, 1))
    (again,), _ = play(runners[1], (3, 1))
    prompts = [t.prompt_ids.tobytes() for g in (first, again) for t in g.trajectories]
    assert len(set(prompts)) == 1
    assert other.trajectories[0].prompt_ids.tobytes() != prompts[0]
    assert {record.outcome for record in report.records} == {Outcome.SUCCESS}
    assert first.task_id == "Tests/Plain-v0#3"
    _, report = play(build(lambda s, t: "wait", "environment.id=Tests/Plain-v0"), (0, 1))
    assert report.records[0].outcome is Outcome.TURN_LIMIT


def test_an_engines_error_ends_the_sampling(build):
    runner = build({"unknown": ["text"]})
    with pytest.raises(EngineError, match="0 texts"):
        play(runner, (0, 4))


def test_a_real_engine_samples_alike_however_the_episodes_are_arranged(build):
    requests = [(0, 3), (1, 3)]
    results = []
    for limit in (1, 4):
        runner = build(None, f"env_runners.max_concurrent_episodes={limit}")
        runner.load_adapter(make_version(3, "run", {}, 1.0))
        groups, report = play(runner, *requests)
        results.append([t.token_ids.tolist() for g in groups for t in g.trajectories])
        assert report.adapter_versions == (3, 3)
        assert all(np.all(t.sampling_logprobs[t.loss_mask] < 0) for t in groups[0].trajectories)
    assert results[0] == results[1]
    assert results[0][0] != results[0][1]


class BadDataEnv(word_env.WordEnv):
    """Raises `error` at `where`, as often as the task has FAULTS left."""

    def __init__(self, where="step", error=None, **options):
        super().__init__(**options)
        self.where, self.error = where, error

    def _raise(self, where, task):
        if where == self.where and word_env.FAULTS[task.task_id] > 0:
            word_env.FAULTS[task.task_id] -= 1
            raise self.error

    def _begin(self, task):
        self._raise("reset", task)
        return super()._begin(task)

    def _act(self, action):
        self._raise("step", self.task)
        return super()._act(action)


BAD_DATA = [DataError("tasks.jsonl, row 7: the gold fails"), UnknownTaskError("no task 'x'")]
for where in ("reset", "step"):
    for error in BAD_DATA:
        kwargs = {"where": where, "error": error}
        gymnasium.register(f"Tests/Bad{type(error).__name__}-{where}-v0", BadDataEnv, kwargs=kwargs)


@pytest.mark.parametrize("error", BAD_DATA, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["reset", "step"])
@pytest.mark.parametrize("num_faults", [1, 10**6])
def test_bad_data_of_a_task_are_a_fault_and_the_run_goes_on(build, where, error, num_faults):
    name = f"Tests/Bad{type(error).__name__}-{where}-v0"
    runner = build(lambda session, turn: "no", f"environment.id={name}")
    task = runner.sample([GroupRequest(1, 1)])[0][0].task_id
    word_env.FAULTS[task] = num_faults
    groups, report = play(runner, (0, 2), (1, 2))
    is_lasting = num_faults > 1
    assert [group.group_id for group in groups] == ([0] if is_lasting else [0, 1])
    assert report.dropped_group_ids == ((1,) if is_lasting else ())
    assert report.counts.num_faults == (1 if not is_lasting else report.counts.num_retries + 2)
    for part in (f"environment {name}, task {task!r}, episode train-000000001-000", str(error)):
        assert part in report.last_fault


class OddTextEnv(word_env.PlainEnv):
    """A prompt and observations with half a surrogate pair."""

    def reset(self, *, seed=None, options=None):
        return "number \ud83d", super().reset(seed=seed)[1]

    def step(self, action):
        self.num_steps = getattr(self, "num_steps", 0) + 1
        return "\udc80 again", 0.0, self.num_steps % 2 == 0, False, {}


gymnasium.register("Tests/OddText-v0", OddTextEnv)


def test_half_a_surrogate_pair_of_an_environment_is_read_as_a_question_mark(build):
    runner = build(lambda session, turn: "yes", "environment.id=Tests/OddText-v0")
    _, report = play(runner, (0, 1))
    said = [text for role, text in report.records[0].messages if role == "user"]
    assert said == ["number ?", "? again", "? again"] and report.counts.num_faults == 0
