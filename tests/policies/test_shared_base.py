"""Models of one process over the same frozen base have one copy of its weights."""

import gc
from contextlib import closing

import numpy as np
import pytest
import torch
from learner_parts import random_groups
from small_model import SMALL

from agentpeft.policies.engines.transformers.engine import start_transformers
from agentpeft.policies.learning.options import teacher
from agentpeft.policies.models.load import load_base, load_served_base
from agentpeft.policies.models.lora.open_adapters import open_adapter
from agentpeft.policies.rollout.chat import ChatFormat
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.toml import with_overrides
from agentpeft.policies.workers.learner_group import LearnerActor

IDS = torch.arange(4, 40)[None]


@pytest.fixture(scope="module")
def folder(cache_folder, tmp_path_factory):
    """A model's folder."""
    folder = tmp_path_factory.mktemp("model")
    base = load_base(Settings(**with_overrides({}, (*SMALL, "env_runners.max_new_tokens=8"))))
    base.model.save_pretrained(folder)
    base.tokenizer.save_pretrained(folder)
    return folder


def make_settings(folder, *overrides):
    own = (
        f"model.name={folder}",
        "lora.rank=4",
        "training.lr=1e-2",
        "env_runners.max_new_tokens=8",
        *overrides,
    )
    return Settings(**with_overrides({}, own))


def make_learner(settings):
    learner = LearnerActor()
    learner.make(settings)
    return learner.learner


def storages(*models):
    """The bytes of each piece of memory that the models' parameters are in, by its address."""
    tensors = (parameter for model in models for parameter in model.parameters())
    pieces = (tensor.untyped_storage() for tensor in tensors)
    return {piece.data_ptr(): piece.nbytes() for piece in pieces}


@torch.no_grad()
def logits(model):
    return model(IDS).logits


@pytest.mark.parametrize(
    ("dtype", "serving"), [("float32", "fused"), ("bfloat16", "native"), ("bfloat16", "fused")]
)
def test_a_learner_and_its_engine_hold_the_base_once(folder, dtype, serving):
    settings = make_settings(folder, f"model.dtype={dtype}", f"env_runners.serving={serving}")
    plain = load_base(settings).model
    expected = logits(plain)
    learner, base = make_learner(settings), load_served_base(settings)
    engine = start_transformers(settings, base, ChatFormat(base.tokenizer))
    adapter_bytes = sum(weight.nbytes for weight in learner.adapter().weights.values())
    with closing(engine):
        for _ in range(3):
            learner.update(random_groups(vocab=300))
            engine.load_adapter(learner.adapter())
        assert engine.served_effect == pytest.approx(1, abs=0.05)
        with learner.policy.base_alone():
            assert torch.equal(logits(learner.policy.model), expected)
        assert not torch.equal(logits(base.model), expected)
        held = sum(storages(learner.policy.model, base.model).values())
    own = 2 * adapter_bytes
    if serving == "fused":
        changed = [
            w for n, w in plain.named_parameters() if n.removesuffix(".weight").endswith("proj")
        ]
        own = adapter_bytes + sum(weight.nbytes for weight in changed)
    assert held <= sum(storages(plain).values()) + own


def test_an_engine_without_an_adapter_has_nothing_of_its_own(folder):
    settings = make_settings(folder)
    first, second = (load_served_base(settings).model for _ in range(2))
    assert storages(first) == storages(second)


def test_a_teacher_over_the_same_base_shares_it(folder, tmp_path, monkeypatch):
    make_learner(make_settings(folder)).policy.save(tmp_path)
    taught = make_settings(folder, "training.algorithm=distill", f"training.teacher={tmp_path}")
    opened = []

    def open_and_keep(base, path):
        opened.append(open_adapter(base, path))
        return opened[0]

    monkeypatch.setattr(teacher, "open_adapter", open_and_keep)
    learner = make_learner(taught)
    (network,) = opened
    alone, num_adapter = len(storages(learner.policy.model)), len(learner.adapter().weights)
    assert len(storages(learner.policy.model, network)) == alone + num_adapter


@pytest.mark.parametrize(
    "other",
    [
        lambda settings: load_base(settings).model,
        lambda settings: load_served_base(settings.with_model(dtype="bfloat16")).model,
        lambda settings: (
            make_learner(
                settings.model_copy(update={"lora": settings.lora.model_copy(update={"rank": 0})})
            ).policy.model
        ),
    ],
    ids=["a base that may be changed", "another type", "all weights"],
)
def test_nothing_else_is_shared(folder, other):
    settings = make_settings(folder, "model.dtype=float32")
    frozen = load_served_base(settings).model
    assert storages(frozen).keys().isdisjoint(storages(other(settings)))


def test_a_folder_that_was_written_anew_is_another_base(folder, tmp_path):
    settings = make_settings(tmp_path)
    source = load_base(make_settings(folder))
    source.tokenizer.save_pretrained(tmp_path)
    source.model.save_pretrained(tmp_path)
    before = load_served_base(settings).model
    with torch.no_grad():
        for parameter in source.model.parameters():
            parameter.add_(1)
    source.model.save_pretrained(tmp_path)
    after = load_served_base(settings).model
    names = dict(before.named_parameters())
    for name, parameter in after.named_parameters():
        assert np.allclose(parameter.detach(), names[name].detach() + 1)


def test_the_weights_go_with_the_last_model(folder):
    settings = make_settings(folder)
    shape = load_base(settings).model.get_input_embeddings().weight.shape

    def count():
        gc.collect()
        return sum(
            isinstance(each, torch.Tensor) and each.shape == shape for each in gc.get_objects()
        )

    before = count()
    base, second = (load_served_base(settings) for _ in range(2))
    held = count()
    assert held > before
    del base
    assert torch.isfinite(logits(second.model)).all()
    del second
    assert count() <= before
