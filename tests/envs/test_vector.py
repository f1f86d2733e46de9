"""The threaded vector environment, on a toy environment, against Gymnasium's own."""

import gc
import threading

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from toy_env import EchoEnv

from agentpeft.envs import EnvFault, Outcome, SettingsError, Taskset, TextVectorEnv
from agentpeft.envs.core.text_env import Turn

ACTIONS = [
    ("hm", "failure", "word9"),
    ("please", "x", "x"),
    ("hm", "hm", "success"),
    ("x", "hm", "invalid_action"),
    ("x", "hm", "hm"),
]


def make(num_envs=3, **kwargs):
    return TextVectorEnv([EchoEnv] * num_envs, **kwargs)


def plain(value):
    """Returns a result with arrays as lists, to be compared with `==`."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list | np.ndarray):
        return [plain(item) for item in value]
    return value


in_turn_and_in_threads = pytest.mark.parametrize("num_threads", [None, 2])


@in_turn_and_in_threads
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_results_are_those_of_gymnasiums_sync_vector_env(mode, num_threads):
    own = make(autoreset_mode=mode, num_threads=num_threads)
    reference = SyncVectorEnv([EchoEnv] * 3, autoreset_mode=mode)
    assert plain(own.reset(seed=5)) == plain(reference.reset(seed=5))
    for actions in ACTIONS:
        assert plain(own.step(actions)) == plain(reference.step(actions))
    assert own.metadata["autoreset_mode"] is mode


def test_the_spaces_are_batches_of_text():
    env = make()
    observations, _ = env.reset(seed=0)
    assert env.observation_space.contains(observations)
    assert env.action_space.contains(("a", "b", "c"))
    assert env.single_action_space == EchoEnv().action_space
    assert [type(o) for o in observations] == [str] * 3


def test_seeds_are_counted_up_or_given_one_by_one():
    env = make()
    counted = env.reset(seed=7)[0]
    assert env.reset(seed=np.int64(7))[0] == counted
    assert env.reset(seed=[7, 8, 9])[0] == counted
    assert env.reset(seed=[9, None, 7])[0][::2] == counted[::-2]
    with pytest.raises(ValueError, match="expected 3 seeds, got 2"):
        env.reset(seed=[1, 2])


def test_one_task_for_all_or_one_for_each():
    env = make()
    assert list(env.reset(options={"task": "echo/1"})[1]["task_id"]) == ["echo/1"] * 3
    ids = ["echo/1", "echo/2", "echo/3"]
    for given in (ids, tuple(ids), Taskset(EchoEnv().task_source.get(one) for one in ids)):
        assert list(env.reset(options={"task": given})[1]["task_id"]) == ids
    with pytest.raises(ValueError, match="expected 3 tasks, got 1"):
        env.reset(options={"task": ["echo/1"]})


@pytest.mark.parametrize("text", ["abc", b"abc", "a"])
def test_one_text_is_no_batch_of_actions(text):
    env = make()
    env.reset(seed=0)
    with pytest.raises(TypeError, match=r"expected 3 actions, got one (str|bytes) b?'a"):
        env.step(text)
    assert env.step(np.array(["hm", "hm", "hm"]))[4]["num_turns"].tolist() == [1, 1, 1]


@in_turn_and_in_threads
def test_a_reset_mask_leaves_the_others_alone(num_threads):
    env = make(autoreset_mode="Disabled", num_threads=num_threads)
    before, _ = env.reset(seed=0)
    env.step(["hm", "failure", "hm"])
    with pytest.raises(ResetNeeded, match=r"\[1\]"):
        env.step(["hm"] * 3)
    mask = np.array([False, True, False])
    observations, infos = env.reset(options={"reset_mask": mask, "task": "echo/4"})
    assert observations == ("Go on.", "Say 'word4' in at most 3 turns.", "Go on.")
    assert list(infos["_task_id"]) == [False, True, False]
    assert list(env.step(["hm", "word4", "hm"])[4]["num_turns"]) == [2, 1, 2]
    assert before[1] != observations[1]


@pytest.mark.parametrize("mask", [np.ones(2, dtype=bool), np.array([0, 1, 2]), "yes"])
def test_a_wrong_reset_mask_is_refused(mask):
    with pytest.raises(ValueError, match="reset_mask needs 3 booleans"):
        make().reset(options={"reset_mask": mask})


def test_an_episode_that_ended_is_reset_at_the_next_step():
    env = make(num_envs=1)
    env.reset(seed=0)
    _, rewards, terminated, truncated, infos = env.step(["failure"])
    assert (terminated[0], truncated[0], infos["outcome"][0]) == (True, False, Outcome.FAILURE)
    observations, rewards, terminated, _, infos = env.step(["ignored"])
    assert observations[0].startswith("Say ")
    assert (rewards[0], terminated[0], infos["num_turns"][0]) == (0.0, False, 0)
    assert (rewards.dtype, terminated.dtype) == (np.float64, np.bool_)


@in_turn_and_in_threads
def test_a_fault_in_one_lets_the_others_finish_and_a_reset_starts_anew(num_threads):
    env = make(num_threads=num_threads)
    env.reset(seed=0)
    with pytest.raises(EnvFault):
        env.step(["fault", "hm", "failure"])
    assert [len(actions) for actions in env.get_attr("actions")] == [1, 1, 1]
    with pytest.raises(ResetNeeded):
        env.step(["hm"] * 3)
    env.reset(options={"task": "echo/1"})
    assert list(env.step(["word1"] * 3)[4]["is_success"]) == [True] * 3


class TellingEnv(EchoEnv):
    """Adds to the info what `tell` gives for its actions so far."""

    def __init__(self, tell, **options):
        super().__init__(**options)
        self.tell = tell

    def step(self, action):
        *result, info = super().step(action)
        return *result, {**info, **self.tell(len(self.actions))}


@pytest.mark.parametrize(
    "tell",
    [
        lambda _: {},
        lambda num: {"extra": num} if num == 2 else {},
        lambda num: {"mixed": num if num == 1 else "text"},
        lambda num: {"none": None, "real": num / 2, "array": np.ones(2), "text": "a" * num},
        lambda num: {"nested": {"depth": num}},
        lambda num: {"np": np.float32(num), "list": [num], "pair": (num, "b")},
    ],
)
def test_infos_are_batched_as_gymnasium_does(tell):
    own = TextVectorEnv([lambda: TellingEnv(tell)] * 3)
    reference = SyncVectorEnv([lambda: TellingEnv(tell)] * 3)
    assert plain(own.reset(seed=1)) == plain(reference.reset(seed=1))
    for actions in (("hm", "hm", "failure"), ("please", "hm", "hm"), ("hm", "word", "hm")):
        infos, expected = own.step(actions)[4], reference.step(actions)[4]
        assert plain(infos) == plain(expected)
        for key, value in expected.items():
            if isinstance(value, np.ndarray):
                assert infos[key].dtype == value.dtype, key


class MeetingEnv(EchoEnv):
    """Steps only return once two of them are under way at the same time."""

    has_waiting_steps = True
    barrier = threading.Barrier(2, timeout=20)

    def _act(self, action):
        self.barrier.wait()
        return Turn("met")


def test_steps_run_at_the_same_time():
    env = TextVectorEnv([MeetingEnv] * 2)
    env.reset(seed=0)
    assert env.step(["a", "b"])[0] == ("met", "met")


def test_steps_that_wait_for_nothing_take_no_threads():
    env = make()
    env.reset(seed=0)
    here = threading.get_ident()
    env.envs[0].unwrapped._act = lambda _: Turn(str(threading.get_ident()))
    assert env.step(["hm"] * 3)[0][0] == str(here)


def test_fewer_threads_than_environments_step_them_all():
    env = make(num_envs=10, num_threads=2)
    env.reset(options={"task": "echo/1"})
    assert env.step(["word1"] * 10)[1].tolist() == [1.0] * 10


def test_attributes_are_read_set_and_called_for_each():
    env = make(num_envs=2)
    env.reset(options={"task": "echo/1"})
    assert [task.word for task in env.get_attr("task")] == ["word1", "word1"]
    assert env.call("oracle_actions", env.envs[0].task) == (["please", "word1"],) * 2
    env.set_attr("render_mode", "ansi")
    assert env.render() == ("Say 'word1' in at most 3 turns.\n[ongoing]",) * 2
    env.set_attr("render_mode", ["ansi", None])
    assert env.render()[1] is None


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_envs": 0}, "num_envs >= 1"),
        ({"num_threads": 0}, "num_threads must be an integer >= 1, got 0"),
        ({"autoreset_mode": "never"}, "'never' is not a valid AutoresetMode"),
    ],
)
def test_wrong_settings_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        make(**kwargs)
    assert issubclass(SettingsError, ValueError)


def test_the_number_of_actions_must_fit():
    env = make()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="expected 3 actions, got 2"):
        env.step(["a", "b"])


def test_close_is_idempotent_and_ends_the_threads():
    before = set(threading.enumerate())
    env = make(num_threads=3)
    env.reset(seed=0)
    own = set(threading.enumerate()) - before
    assert 1 <= len(own) <= 3
    env.close()
    env.close()
    assert not any(thread.is_alive() for thread in own)


class BrokenEnv(EchoEnv):
    def __init__(self):
        raise SettingsError("this one cannot be made")


def test_a_batch_that_cannot_be_made_closes_what_was_made_and_is_silent(recwarn):
    closed = []
    first = EchoEnv()
    first.close = lambda: closed.append(1)
    with pytest.raises(SettingsError, match="cannot be made"):
        TextVectorEnv([lambda: first, BrokenEnv])
    with pytest.raises(SettingsError):
        make(num_threads=0)
    gc.collect()
    assert closed == [1]
    assert not recwarn.list
