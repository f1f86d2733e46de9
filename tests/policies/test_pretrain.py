import importlib
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice, pairwise
from multiprocessing import active_children
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from word_env import WordEnv

from agentpeft.envs import ENV_IDS, EnvFault, Outcome, SettingsError
from agentpeft.envs.arithmetic.env import ArithmeticEnv
from agentpeft.policies.errors import EnvironmentBugError
from agentpeft.policies.models.batch_maker import open_batches
from agentpeft.policies.models.pretrain import PretrainSchedule, _backward, _states_of
from agentpeft.policies.models.tiny import build_tiny
from agentpeft.policies.models.tiny_cache import compute_key, keep_base, load_tiny
from agentpeft.policies.rollout.chat import ChatFormat
from agentpeft.policies.rollout.oracle import (
    WarmStartBatches,
    imitated_groups,
    play_oracle,
    warm_start_batches,
)
from agentpeft.policies.rollout.scripted_play import make_text_env
from agentpeft.policies.settings.config import (
    EnvironmentSettings,
    ModelSettings,
    Settings,
    TinySettings,
    WarmStartSettings,
)

STAGES = WarmStartSettings(
    num_steps=100, batch_size=2, env_kwargs=[{"num_digits": n} for n in (1, 2, 3)]
)
SMALL = TinySettings(hidden_size=32, num_layers=2)
ARITHMETIC = EnvironmentSettings(kwargs={"num_digits": 1, "prompt": "compact"})
DB_BENCH = EnvironmentSettings(id="AgentPEFT/DBBench-v0")


def make_settings(num_steps=3, **changes):
    warm_start = WarmStartSettings(num_steps=num_steps, batch_size=8, lr=1e-2)
    fields = {"tiny": SMALL, "environment": ARITHMETIC, "warm_start": warm_start, **changes}
    return Settings(**fields)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTPEFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def make_chat():
    return ChatFormat(build_tiny(SMALL, ["some text"]).tokenizer)


@pytest.mark.parametrize("environment", [ARITHMETIC, DB_BENCH])
def test_oracle_episodes_succeed_and_decode_to_its_actions(environment):
    chat, env = make_chat(), make_text_env(environment.id, environment.kwargs)
    task = env.task_source.draw(np.random.default_rng(0))
    episode = play_oracle(env, task, chat)
    starts = [0, *episode.turn_ends]
    parts = [slice(*ends) for ends in pairwise(starts)]
    said = [chat.decode(episode.token_ids[p][episode.loss_mask[p]]) for p in parts]
    assert said == list(env.oracle_actions(task))
    assert episode.outcome is Outcome.SUCCESS and episode.episode_return == 1.0
    assert len(episode.token_ids) == len(episode.loss_mask) == episode.turn_ends[-1]
    assert all(episode.token_ids[end - 1] in chat.stop_token_ids for end in episode.turn_ends)


def test_a_position_is_always_the_same_task():
    chat = make_chat()
    groups = imitated_groups(ARITHMETIC, None, chat, 0)
    first = [next(groups).task_id for _ in range(6)]
    later = imitated_groups(ARITHMETIC, None, chat, 0, first=4)
    assert [next(later).task_id for _ in range(2)] == first[4:] and len(set(first)) > 1


def test_supervised_steps_learn_from_the_overridden_environment():
    warm_start = WarmStartSettings(num_steps=2, batch_size=3, env_kwargs={"num_digits": 3})
    batches = list(warm_start_batches(make_settings(warm_start=warm_start), make_chat()))
    assert [len(batch) for batch in batches] == [3, 3]
    assert {group.skills for batch in batches for group in batch} == {("addition", "3_digits")}


def test_stages_follow_one_another_with_tasks_of_their_own():
    warm_start = STAGES.model_copy(update={"num_steps": 7})
    batches = list(warm_start_batches(make_settings(warm_start=warm_start), make_chat()))
    digits = [{group.skills[1] for group in batch} for batch in batches]
    assert digits == [{f"{n}_digits"} for n in (1, 1, 2, 2, 3, 3, 3)]
    assert [group.group_id for batch in batches for group in batch] == list(range(14))


def test_the_target_counts_in_the_last_stage():
    warm_start = WarmStartSettings(num_steps=100, target_success=0.5, env_kwargs=[{}, {}])
    factors = play_schedule(PretrainSchedule(warm_start), [1.0] * 100)
    assert len(factors) == 64 and factors[57:] == [1.0, 1.0, *(n / 6 for n in range(5, 0, -1))]


def test_a_stage_ends_early_by_success_and_leaves_its_steps_to_the_next():
    warm_start = STAGES.model_copy(update={"promote_at": 0.5})
    schedule, stages = PretrainSchedule(warm_start), []
    for success in [1.0] * 9 + [0.0] * 91:
        stages.append(schedule.stage)
        schedule.step(success)
    assert [stages.index(stage) for stage in range(3)] == [0, 8, 66]
    assert schedule.is_done


def test_a_target_without_decay_ends_at_once():
    warm_start = WarmStartSettings(num_steps=100, target_success=0.5, decay=0)
    assert play_schedule(PretrainSchedule(warm_start), [1.0] * 100)[-3:] == [1.0] * 3
    assert len(play_schedule(PretrainSchedule(warm_start), [1.0] * 100)) == 8


def test_environment_without_an_oracle_is_refused():
    with pytest.raises(SettingsError, match="no TextEnv: it has no tasks, nor an oracle"):
        make_text_env("CartPole-v1", {})


def test_loss_falls_and_is_reported():
    losses = []
    load_tiny(make_settings(num_steps=30), lambda step, loss, success: losses.append((step, loss)))
    assert [step for step, _ in losses] == list(range(1, 31))
    assert losses[-1][1] < 0.6 * losses[0][1]


def play_schedule(schedule, successes):
    """Returns the learning rate's factors of all steps until the schedule is done."""
    factors = []
    for success in successes:
        if schedule.is_done:
            break
        factors.append(schedule.lr_factor)
        schedule.step(success)
    return factors


def test_learning_rate_warms_up_stays_and_decays():
    factors = play_schedule(PretrainSchedule(WarmStartSettings(num_steps=40)), [1.0] * 100)
    expected = [0.5, *[1.0] * 36, *(n / 4 for n in range(3, 0, -1))]
    assert factors == pytest.approx(expected)


def test_learning_rate_decays_over_the_share_that_is_asked_for():
    factors = play_schedule(PretrainSchedule(WarmStartSettings(num_steps=20, decay=0.5)), [0] * 50)
    assert factors == pytest.approx([1.0] * 11 + [n / 10 for n in range(9, 0, -1)])


def test_target_begins_the_decay_once_eight_batches_reach_it():
    settings = WarmStartSettings(num_steps=100, target_success=0.9)
    successes = [0.0] * 12 + [0.9] * 100
    factors = play_schedule(PretrainSchedule(settings), successes)
    assert factors[19:] == pytest.approx([1, 1, 1 / 2])


def test_target_ends_pretraining_early():
    steps = []
    settings = make_settings(num_steps=400)
    warm_start = settings.warm_start.model_copy(update={"target_success": 0.05})
    load_tiny(
        settings.model_copy(update={"warm_start": warm_start}),
        lambda step, loss, success: steps.append(success),
    )
    assert len(steps) < 400 and np.mean(steps[-10:]) >= 0.05


def test_share_of_right_rows_is_that_of_greedy_decoding():
    model = build_tiny(SMALL, ["some text"]).model
    ids = np.array([4, 9, 30])
    for _ in range(3):  # the last three tokens are what greedy decoding adds
        with torch.no_grad():
            ids = np.append(ids, int(model(torch.from_numpy(ids)[None]).logits[0, -1].argmax()))
    other = np.append(ids[:-1], (ids[-1] + 1) % 99)
    mask = np.arange(6) >= 3
    with ThreadPoolExecutor(1) as pool:
        assert _backward(model, [(ids, mask), (other, mask)], pool)[1] == 0.5


def test_loss_is_the_mean_over_action_tokens_alone():
    model = build_tiny(SMALL, ["some text"]).model
    rng = np.random.default_rng(0)
    rows = [(rng.integers(4, 99, n), rng.random(n) < 0.5) for n in (9, 4)]
    terms = []
    for ids, mask in rows:
        with torch.no_grad():
            logprobs = model(torch.from_numpy(ids)[None]).logits[0].log_softmax(-1)
        terms += [-float(logprobs[t - 1, ids[t]]) for t in range(1, len(ids)) if mask[t]]
    rows = [(ids, np.append(False, mask[1:])) for ids, mask in rows]
    with ThreadPoolExecutor(1) as pool:
        assert _backward(model, rows, pool)[0] == pytest.approx(np.mean(terms), rel=1e-5)


def test_micro_batches_on_several_cores_have_the_gradients_of_the_whole():
    model = build_tiny(SMALL, ["some text"]).model
    rng = np.random.default_rng(0)
    rows = [(rng.integers(4, 99, n), np.arange(n) >= n // 2) for n in rng.integers(60, 150, 40)]
    found = []
    for num_threads in (1, 3):
        with ThreadPoolExecutor(num_threads) as pool:
            _backward(model, rows, pool)
        found.append([parameter.grad for parameter in model.parameters()])
    model.zero_grad()
    terms = []
    for ids, mask in rows:
        logprobs = model(torch.from_numpy(ids)[None]).logits[0].log_softmax(-1)
        targets = np.flatnonzero(mask)
        terms.append(-logprobs[targets - 1, ids[targets]])
    torch.cat(terms).mean().backward()
    for one, several, parameter in zip(*found, model.parameters(), strict=True):
        assert torch.equal(one, several)
        torch.testing.assert_close(one, parameter.grad, rtol=1e-3, atol=1e-6)


def test_torch_has_its_threads_back_after_pretraining():
    num_threads = torch.get_num_threads()
    load_tiny(make_settings())
    assert torch.get_num_threads() == num_threads


def test_second_load_comes_from_the_cache():
    settings, steps = make_settings(), []
    first, second = (
        load_tiny(settings, lambda step, loss, success: steps.append(step)) for _ in range(2)
    )
    assert steps == [1, 2, 3]
    assert first.fingerprint == second.fingerprint is not None and first.name == second.name


def test_making_again_gives_the_same_weights(cache):
    first = load_tiny(make_settings())
    cache.rename(cache.with_name("other"))
    assert load_tiny(make_settings()).fingerprint == first.fingerprint


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_damaged_entry_is_made_again(cache, name):
    first = load_tiny(make_settings(num_steps=1))
    (damaged,) = cache.glob(f"tiny-*/{name}")
    damaged.write_bytes(damaged.read_bytes()[:-8])
    again = load_tiny(make_settings(num_steps=1))
    assert again.fingerprint == first.fingerprint
    assert not list(cache.glob(".new-*"))


def test_changed_weights_in_the_cache_are_noticed(cache):
    first = load_tiny(make_settings(num_steps=0))
    (path,) = cache.glob("tiny-*/model.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 64
    path.write_bytes(bytes(content))
    assert load_tiny(make_settings(num_steps=0)).fingerprint == first.fingerprint


def test_an_entry_that_another_process_deletes_once_is_written_again(cache):
    first = load_tiny(make_settings(num_steps=0)).fingerprint
    (entry,) = cache.glob("tiny-*")
    shutil.rmtree(entry)

    def delete_once():
        while not entry.exists():
            time.sleep(1e-4)
        shutil.rmtree(entry, ignore_errors=True)

    other = threading.Thread(target=delete_once)
    other.start()
    try:
        assert load_tiny(make_settings(num_steps=0)).fingerprint == first
    finally:
        other.join()


def test_key_follows_what_the_model_depends_on():
    base = make_settings()
    others = [
        make_settings(num_steps=4),
        make_settings(seed=1),
        make_settings(environment=DB_BENCH),
        make_settings(model=ModelSettings(use_chat_template=False)),
        make_settings(model=ModelSettings(system_prompt="Be good.")),
        make_settings(model=ModelSettings(chat_template_kwargs={"enable_thinking": False})),
        make_settings(model=ModelSettings(end_of_thought="[/THINK]")),
    ]
    assert len({compute_key(settings) for settings in (base, *others)}) == 1 + len(others)
    assert compute_key(make_settings(experiment="other")) == compute_key(base)


USERS_ENVIRONMENT = """
import gymnasium
from {sibling} import WORD
from agentpeft.envs.arithmetic.env import ArithmeticEnv


class Mine(ArithmeticEnv):
    word = WORD


gymnasium.register("Mine/Words-v0", entry_point="{module}:Mine")
"""


@pytest.fixture
def import_mine(tmp_path, monkeypatch):
    """Imports a user's module and the one beside it, anew where they have changed."""

    def write_and_import(word, module="own_words", sibling="own_word", comment=""):
        (tmp_path / f"{sibling}.py").write_text(f"WORD = {word!r}\n")
        path = tmp_path / f"{module}.py"
        path.write_text(USERS_ENVIRONMENT.format(module=module, sibling=sibling) + comment)
        for name in (module, sibling):
            monkeypatch.delitem(sys.modules, name, raising=False)
        gymnasium.registry.pop("Mine/Words-v0", None)
        return f"{module}:Mine/Words-v0"

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # of two modules of one second
    yield write_and_import
    gymnasium.registry.pop("Mine/Words-v0", None)


def test_key_follows_the_code_of_a_users_environment(import_mine):
    mixture = {"sources": [{"name": "mine", "id": "own_words:Mine/Words-v0"}]}
    keys = set()
    for word, comment in (("a", ""), ("b", ""), ("b", "# more"), ("a", "")):
        env_id = import_mine(word, comment=comment)
        for environment in (
            EnvironmentSettings(id=env_id),
            EnvironmentSettings(id="AgentPEFT/Mixture-v0", kwargs=mixture),
        ):
            keys.add((environment.id, compute_key(make_settings(environment=environment))))
    assert len(keys) == 2 * 3


def test_key_follows_the_whole_package_of_a_users_environment(tmp_path, monkeypatch):
    package = tmp_path / "own_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    source = USERS_ENVIRONMENT.format(module="own_package.env", sibling="own_package.word")
    (package / "env.py").write_text(source)
    (package / "word.py").write_text("WORD = None\n")
    (package / ".#env.py").symlink_to("nowhere")  # as an editor makes one
    monkeypatch.syspath_prepend(tmp_path)
    settings = make_settings(environment=EnvironmentSettings(id="own_package.env:Mine/Words-v0"))
    keys = []
    for word, is_imported_anew in (("a", True), ("bb", False), ("bb", True)):
        (package / "word.py").write_text(f"WORD = {word!r}\n")
        if is_imported_anew:
            for name in [name for name in sys.modules if name.startswith("own_package")]:
                monkeypatch.delitem(sys.modules, name)
            gymnasium.registry.pop("Mine/Words-v0", None)
        importlib.invalidate_caches()
        keys.append(compute_key(settings))
    gymnasium.registry.pop("Mine/Words-v0", None)
    assert keys[0] == keys[1] != keys[2]  # a process goes on with the code that it has imported


def test_a_run_keeps_its_own_model_whatever_becomes_of_the_code(import_mine, cache):
    def settings():
        return make_settings(environment=EnvironmentSettings(id=import_mine("a")), num_steps=0)

    first = load_tiny(settings()).name
    changed = make_settings(environment=EnvironmentSettings(id=import_mine("b")), num_steps=0)
    assert compute_key(changed) != Path(first).name.removeprefix("tiny-")
    keep_base(changed, str(cache / "tiny-0123456789abcdef"))  # it is gone
    keep_base(changed, "some/other-base")
    assert compute_key(changed) != Path(first).name.removeprefix("tiny-")
    keep_base(changed, first)
    assert load_tiny(changed).name == first


@pytest.mark.parametrize("sources", ["wiki", [{"url": "x"}], [{"id": "wiki"}]])
def test_only_a_mixture_has_sources(import_mine, sources):
    environment = EnvironmentSettings(id=import_mine("a"), kwargs={"sources": sources})
    assert len(compute_key(make_settings(environment=environment))) == 16


def test_an_oracle_that_does_not_play_to_the_end_is_not_imitated(monkeypatch):
    monkeypatch.setattr(WordEnv, "oracle_actions", lambda self, task: ["please"])
    environment = EnvironmentSettings(id="Tests/Word-v0")
    with pytest.raises(EnvironmentBugError, match="first 8 episodes none comes to its end"):
        load_tiny(make_settings(environment=environment))
    later = imitated_groups(environment, None, make_chat(), 0, first=8)
    assert len(list(islice(later, 10))) == 10  # it was judged at its first


def test_an_oracle_that_fails_is_imitated_with_a_warning_unless_it_is_to_err(caplog, monkeypatch):
    def imitate(**kwargs):
        environment = EnvironmentSettings(kwargs=ARITHMETIC.kwargs | kwargs)
        list(islice(imitated_groups(environment, None, make_chat(), 0), 10))

    imitate()
    monkeypatch.setattr(ArithmeticEnv, "oracle_actions", lambda self, task: ["-7"])
    imitate(oracle_lapses=0.5)
    assert not caplog.messages
    imitate()
    (message,) = caplog.messages
    assert "of the oracle's first 8 episodes none succeeds" in message


@pytest.mark.parametrize("name", ENV_IDS)
def test_an_id_with_its_module_has_a_key_too(name):
    environment = EnvironmentSettings(id=f"agentpeft.envs:{name}")
    assert len(compute_key(make_settings(environment=environment))) == 16


@pytest.mark.slow
def test_many_batches_made_by_a_process_are_those_of_this_one():
    settings, chat = make_settings(warm_start=STAGES), make_chat()
    stages = [0] * 20 + [1] * 7 + [2] * 3  # the first two end early
    with open_batches(settings, chat) as make, closing(WarmStartBatches(settings, chat)) as own:
        for step, stage in enumerate(stages):
            for one, other in zip(make(step, stage), own.make(step, stage), strict=True):
                assert (one.task_id, one.skills) == (other.task_id, other.skills)
                assert one.group_id // 2 == step and one.skills[1] == f"{stage + 1}_digits"
                (first,), (second,) = one.trajectories, other.trajectories
                assert first.token_ids.tolist() == second.token_ids.tolist()
    assert active_children() == []


@pytest.mark.long
@pytest.mark.slow
def test_who_has_enough_batches_leaves_no_process():
    with open_batches(make_settings(num_steps=100), make_chat()) as make:
        make(0, 0)
        assert len(active_children()) == 1
    assert active_children() == []


@pytest.mark.slow
def test_a_process_of_batches_that_was_ended_is_one_message():
    with (
        pytest.raises(EnvFault, match="was ended"),
        open_batches(make_settings(num_steps=100), make_chat()) as make,
    ):
        make(0, 0)
        (maker,) = active_children()
        maker.kill()
        for step in range(1, 100):
            make(step, 0)


@pytest.mark.slow
def test_an_error_in_the_process_of_batches_is_its_own():
    environment = EnvironmentSettings(kwargs={"num_digits": -1})
    settings = make_settings(num_steps=100, environment=environment)
    with (
        pytest.raises(SettingsError, match="num_digits"),
        open_batches(settings, make_chat()) as make,
    ):
        make(0, 0)
    assert active_children() == []


def test_an_episode_that_is_too_long_is_one_message():
    settings = make_settings(environment=EnvironmentSettings(kwargs={"num_digits": 400}))
    with pytest.raises(SettingsError, match="the tiny model reads 1024: make the tasks shorter"):
        load_tiny(settings)


def test_cache_that_cannot_be_written_is_one_message(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AGENTPEFT_CACHE", str(tmp_path / "file"))
    with pytest.raises(SettingsError, match="cannot be written"):
        load_tiny(make_settings(num_steps=0))


def test_states_of_some_positions_are_those_of_the_whole_model():
    """With their gradients; each row has another number of them, at other places."""
    model = build_tiny(SMALL, ["some text"]).model.double()
    ids = torch.randint(4, 99, (5, 23))
    where = torch.rand(5, 23) < torch.tensor([0.05, 0.2, 0.5, 0.9, 1.1])[:, None]
    where[0] = False
    found = _states_of(model.model, ids, where)
    expected = model.model(input_ids=ids).last_hidden_state[where]
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(expected)
    gradients = [
        torch.autograd.grad((each * weights).sum(), list(model.model.parameters()))
        for each in (found, expected)
    ]
    torch.testing.assert_close(*gradients)
