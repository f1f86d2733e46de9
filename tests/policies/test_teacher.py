"""On-policy distillation: what a teacher adds to each token's advantage (`training.teacher`)."""

import json
import threading
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch
from learner_parts import flat_weights, make_group, make_trajectory, random_groups
from small_model import SMALL

from agentpeft.envs import SettingsError
from agentpeft.policies.errors import TrainingError
from agentpeft.policies.learning.algorithms import algorithm_of
from agentpeft.policies.learning.learner import Learner
from agentpeft.policies.learning.options.endpoint_teacher import EndpointTeacher
from agentpeft.policies.learning.options.teacher import add_teaching
from agentpeft.policies.learning.samples import Scores, estimate_by_episode, list_samples
from agentpeft.policies.models.load import load_base
from agentpeft.policies.models.lora.attach_lora import attach_lora
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.toml import with_overrides

TINY = (*SMALL, "env_runners.max_new_tokens=8", "lora.rank=4", "training.lr=1e-2")


def make_settings(*overrides):
    return Settings(**with_overrides({}, (*TINY, *overrides)))


def make_learner(*overrides):
    settings = make_settings(*overrides)
    return Learner(settings, attach_lora(load_base(settings), settings.lora))


@pytest.fixture(scope="module")
def teacher(tmp_path_factory, cache_folder):
    """The folder of an adapter, of another rank, over the base that the learners have."""
    folder = tmp_path_factory.mktemp("teacher")
    settings = make_settings("lora.rank=2", "lora.alpha=4")
    policy = attach_lora(load_base(settings), settings.lora)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.trainable_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    policy.save(folder)
    return folder, policy


@torch.no_grad()
def logprobs_of(model, trajectory, temperature=1.0):
    """The sampled tokens' log-probabilities, of one sequence alone."""
    ids = torch.tensor(np.concatenate([trajectory.prompt_ids, trajectory.token_ids]))
    logprobs = (model(input_ids=ids[None]).logits[0] / temperature).log_softmax(-1)
    at = len(trajectory.prompt_ids) + np.flatnonzero(trajectory.loss_mask)
    return np.array([logprobs[i - 1, ids[i]].item() for i in at], np.float32)


@pytest.mark.parametrize("algorithm", ["distill", "dr_grpo"])
def test_each_token_gets_the_teachers_logprob_less_the_policys(algorithm):
    samples = list_samples(random_groups(num_groups=2))
    rng = np.random.default_rng(0)
    old, teacher = (
        [Scores(rng.normal(size=s.num_sampled_tokens).astype(np.float32)) for s in samples]
        for _ in range(2)
    )
    settings = make_settings(f"training.algorithm={algorithm}", "training.teacher=x")
    samples = [replace(sample, old=scores) for sample, scores in zip(samples, old, strict=True)]
    samples = estimate_by_episode(samples, algorithm_of(settings.training), 0.0)
    samples = add_teaching(samples, teacher)
    for sample, before, taught in zip(samples, old, teacher, strict=True):
        rewards = [s.trajectory.episode_return for s in samples if s.group == sample.group]
        own = sample.trajectory.episode_return - np.mean(rewards)
        own = own if algorithm == "dr_grpo" else 0.0
        expected = own + (taught.logprobs - before.logprobs)
        assert sample.advantages == pytest.approx(expected, abs=1e-6)


def test_an_adapter_of_any_rank_scores_as_it_computes(teacher):
    folder, policy = teacher
    groups = random_groups(vocab=300)
    temperature = "env_runners.temperature=0.7"
    learner = make_learner("training.algorithm=distill", f"training.teacher={folder}", temperature)
    gaps = np.concatenate(
        [
            logprobs_of(learner.policy.model, t, 0.7) - logprobs_of(policy.model, t, 0.7)
            for group in groups
            for t in group.trajectories
        ]
    )
    assert learner.update(groups)["train/teacher_kl"] == pytest.approx(gaps.mean(), abs=1e-5)
    assert abs(gaps).max() > 0.1


def test_the_policy_comes_nearer_to_the_teacher_whatever_the_rewards(teacher):
    """It samples the tokens after one prompt itself, as distillation is on-policy."""
    folder, policy = teacher
    learner = make_learner("training.algorithm=distill", f"training.teacher={folder}")
    rng, prompt = np.random.default_rng(0), torch.tensor([[5, 6, 7]])

    @torch.no_grad()
    def distribution(model):
        return model(input_ids=prompt).logits[0, -1].double().softmax(-1)

    def reverse_kl():
        own, wanted = distribution(learner.policy.model), distribution(policy.model)
        return (own * (own / wanted).log()).sum().item()

    before = reverse_kl()
    for _ in range(15):
        own = distribution(learner.policy.model)
        tokens = rng.choice(len(own), 64, p=own / own.sum())
        episodes = [make_trajectory([5, 6, 7], [token], -1) for token in tokens]
        learner.update([make_group(0, episodes)])
    assert reverse_kl() < 0.5 * before


def test_a_base_is_a_teacher_too(teacher):
    folder, _ = teacher
    base = load_base(make_settings()).name
    groups, after = random_groups(vocab=300), []
    for overrides in (
        (),
        (f"training.teacher={folder}",),
        (f"training.teacher={base}",),
    ):
        learner = make_learner("training.algorithm=dr_grpo", *overrides)
        metrics = learner.update(groups)
        after.append(flat_weights(learner).tobytes())
        if overrides == (f"training.teacher={base}",):
            assert metrics["train/teacher_kl"] == pytest.approx(0, abs=1e-6)
    assert len(set(after[:2])) == 2


def test_a_teacher_that_is_not_there_or_reads_other_tokens_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="no folder of a model"):
        make_learner("training.algorithm=distill", f"training.teacher={tmp_path}")
    other = make_settings("tiny.vocab_size=400")
    name = load_base(other).name
    with pytest.raises(SettingsError, match=r"has another vocabulary than model.name 'tiny'"):
        make_learner("training.algorithm=distill", f"training.teacher={name}")


@torch.no_grad()
def complete(model, body):
    """The answer of `/completions` with `echo`, as vLLM gives it."""
    ids = torch.tensor(body["prompt"])
    logprobs = model(input_ids=ids[None]).logits[0].log_softmax(-1)
    told = logprobs[:-1].gather(1, ids[1:, None])[:, 0].tolist()
    tokens = [f"token_id:{token}" for token in body["prompt"]]
    return {"token_logprobs": [None, *told], "tokens": tokens}


@contextmanager
def endpoint(answer, models=("wise",), page=None):
    """Yields the URL of a server that answers with `answer(request)`, and the requests.

    A `page` is what it answers to all.
    """
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.reply({"object": "list", "data": [{"id": name} for name in models]})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            requests.append((self.path, body))
            logprobs = answer(body)
            choice = {"index": 0, "text": "", "finish_reason": "length", "logprobs": logprobs}
            self.reply({"object": "text_completion", "choices": [choice]})

        def reply(self, content):
            data = json.dumps(content).encode() if page is None else page.encode()
            self.send_response(200)
            kind = "text/html" if data.startswith(b"<") else "application/json"
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1", requests
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("algorithm", ["distill", "grpo"])
def test_an_endpoint_teaches_what_the_same_model_does_in_the_learner(teacher, algorithm):
    folder, policy = teacher
    groups, learnt = random_groups(vocab=300), []
    with endpoint(lambda body: complete(policy.model, body)) as (url, requests):
        for name in (folder, url):
            learner = make_learner(f"training.algorithm={algorithm}", f"training.teacher={name}")
            metrics = learner.update(groups)
            learnt.append((metrics["train/teacher_kl"], flat_weights(learner)))
    trajectories = [each for group in groups for each in group.trajectories]
    assert len(requests) == len(trajectories)
    for path, body in requests:
        assert path == "/v1/completions"
        assert (body["model"], body["echo"], body["temperature"]) == ("wise", True, 1.0)
    sent = {tuple(body["prompt"]) for _, body in requests}
    assert sent == {(*each.prompt_ids, *each.token_ids) for each in trajectories}
    (local, weights), (served, served_weights) = learnt
    assert served == pytest.approx(local, abs=1e-5)
    # One step of AdamW moves each weight by the rate, in the direction of its gradient
    assert np.isclose(weights, served_weights, atol=1e-4).mean() > 0.99


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda body: None, "answered no log-probabilities"),
        (lambda body: {"token_logprobs": [-1.0], "tokens": ["a"]}, "answered 1 log-probabilities"),
        (
            lambda body: {"token_logprobs": [None] * len(body["prompt"]), "tokens": []},
            "it must say those of a prompt",
        ),
        (
            lambda body: {
                "token_logprobs": [None, *[-1.0] * (len(body["prompt"]) - 1)],
                "tokens": [f"token_id:{token + 1}" for token in body["prompt"]],
            },
            "has read other tokens than it was sent",
        ),
    ],
)
def test_an_endpoint_that_says_something_else_ends_the_run(answer, message):
    with endpoint(answer) as (url, _):
        learner = make_learner("training.algorithm=distill", f"training.teacher={url}")
        with pytest.raises(TrainingError, match=message):
            learner.update(random_groups(vocab=300))


def test_one_of_several_models_is_named():
    with endpoint(lambda body: None, ("wise", "wiser")) as (url, _):
        words = "training.algorithm=distill", f"training.teacher={url}"
        with pytest.raises(SettingsError, match=r"wise, wiser: name one as http"):
            make_learner(*words)
        with pytest.raises(SettingsError, match="has no model 'wize'; did you mean 'wise'"):
            make_learner(*words[:1], f"training.teacher={url}#wize")
        make_learner(*words[:1], f"training.teacher={url}#wiser")


def test_an_endpoint_that_is_not_there_is_refused_at_the_start():
    with endpoint(lambda body: None) as (url, _):
        pass
    with pytest.raises(SettingsError, match="does not answer: Connection error"):
        make_learner("training.algorithm=distill", f"training.teacher={url}")


@pytest.mark.parametrize("page", ["<html>hello</html>", "[]", '{"data": 3}'])
def test_a_server_of_other_things_is_refused_at_the_start(page):
    with endpoint(None, page=page) as (url, _), pytest.raises(SettingsError, match="no models"):
        EndpointTeacher(url)


def test_a_key_that_no_header_can_hold_is_refused(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "ключ")
    with (
        endpoint(None) as (url, _),
        pytest.raises(SettingsError, match="no key has"),
    ):
        EndpointTeacher(url)


@pytest.mark.parametrize("logprobs", [{"tokens": [1]}, {"token_logprobs": ["likely"]}, 3])
def test_log_probabilities_that_are_none_end_the_run(logprobs):
    samples = list_samples(random_groups(vocab=300))
    with endpoint(lambda body: logprobs) as (url, _), pytest.raises(TrainingError, match="teacher"):
        EndpointTeacher(url).score(samples)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("training.teacher=http://x/v1", "env_runners.temperature=0.5"), "at temperature 1"),
        (("training.teacher=http://x/v1", "deterministic=true"), "deterministic to false"),
    ],
)
def test_settings_of_an_endpoint_that_cannot_work_are_refused(overrides, message):
    with pytest.raises(SettingsError, match=message):
        make_settings(*overrides)
