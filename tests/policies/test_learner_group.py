"""What a group of learners asks of Ray, without starting one."""

import pytest

from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers.actors import ActorSpec
from agentpeft.policies.workers.learner_group import LearnerActor, LearnerGroup


def find_spec(num_gpus):
    asked = list[ActorSpec]()

    class Recorded(LearnerActor):
        @classmethod
        def start_all(cls, spec, settings):
            asked.append(spec)

    LearnerGroup(Settings(learners={"num_gpus_per_learner": num_gpus}), Recorded)
    return asked[0]


@pytest.mark.parametrize("is_set", [False, True])
def test_a_learners_memory_grows_in_segments_unless_the_user_has_set_it(monkeypatch, is_set):
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    if is_set:
        monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "garbage_collection_threshold:0.8")
    expected = {} if is_set else {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert find_spec(0.5).variables == expected
