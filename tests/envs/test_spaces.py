"""The text space."""

import pickle

import numpy as np
import pytest
from gymnasium.spaces import Dict, Text
from gymnasium.vector import AsyncVectorEnv
from gymnasium.vector.utils import batch_space
from hypothesis import given
from hypothesis import strategies as st
from toy_env import EchoEnv

from agentpeft.envs import Unicode


@given(st.text(max_size=40))
def test_every_string_up_to_the_length_is_contained(text):
    assert Unicode(40).contains(text)
    assert Unicode(10).contains(text) == (len(text) <= 10)


@pytest.mark.parametrize("value", [b"bytes", 1, None, ["a"], np.array("a")])
def test_only_strings_are_contained(value):
    assert not Unicode(10).contains(value)


@pytest.mark.parametrize("max_length", [0, 5, 100_000])
def test_samples_are_contained_and_repeat_with_the_seed(max_length):
    space = Unicode(max_length, seed=4)
    samples = [space.sample() for _ in range(50)]
    assert all(space.contains(sample) for sample in samples)
    again = Unicode(max_length, seed=4)
    assert samples == [again.sample() for _ in range(50)]


def test_a_mask_is_passed_on_to_gymnasium():
    space = Unicode(10, seed=0)
    mask = np.zeros(len(space.character_list), dtype=np.int8)
    mask[space.character_list.index("q")] = 1
    assert space.sample(mask=(4, mask)) == "qqqq"


def test_equality_is_by_length_and_kind():
    assert Unicode(5) == Unicode(5)
    assert Unicode(5) != Unicode(6)
    assert Unicode(5) != Text(5)


def test_it_survives_pickling_batching_and_composition():
    space = Unicode(5)
    assert pickle.loads(pickle.dumps(space)) == space
    assert batch_space(space, 2).contains(("ab", "cde"))
    assert Dict({"text": space}).contains({"text": "abc"})


def test_shared_memory_is_refused_with_the_way_out():
    with pytest.raises(TypeError, match=r"shared_memory=False"):
        AsyncVectorEnv([EchoEnv, EchoEnv])
