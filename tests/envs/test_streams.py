"""Task streams: stages, rounds, and positions that are saved and restored."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_env import EchoSource

from agentpeft.envs import SettingsError, Stage, Taskset, TaskStream


def make_stream(seed=0):
    taskset = Taskset(EchoSource().get(f"echo/{number}") for number in range(4))
    return TaskStream([Stage("known", taskset, 10), Stage("drawn", EchoSource(1000), 7)], seed=seed)


def ids(tasks):
    return [task.task_id for task in tasks]


def test_stages_follow_each_other_and_the_stream_ends():
    stream = make_stream()
    assert (len(stream), stream.stage.name) == (17, "known")
    assert len([next(stream) for _ in range(10)]) == 10
    assert stream.stage.name == "drawn"
    assert len(list(stream)) == 7
    assert list(stream) == []
    assert (stream.position, stream.stage.name) == (17, "drawn")


def test_a_taskset_is_gone_through_in_shuffled_rounds():
    names = ids(make_stream())
    rounds = [names[0:4], names[4:8]]
    assert all(sorted(r) == ["echo/0", "echo/1", "echo/2", "echo/3"] for r in rounds)
    assert len(set(names[8:10])) == 2
    orders = {tuple(ids(make_stream(seed))[:4]) for seed in range(20)}
    assert len(orders) > 5


def test_the_seed_alone_decides_the_tasks():
    assert ids(make_stream(1)) == ids(make_stream(1))
    assert ids(make_stream(1)) != ids(make_stream(2))


@given(st.integers(0, 17))
def test_a_restored_stream_goes_on_with_the_same_tasks(position):
    stream = make_stream(5)
    expected = ids(make_stream(5))
    assert ids(next(stream) for _ in range(position)) == expected[:position]
    restored = make_stream(5)
    restored.load_state_dict(json.loads(json.dumps(stream.state_dict())))
    assert ids(restored) == expected[position:]


def test_a_position_can_be_rewound():
    stream = make_stream()
    start = stream.state_dict()
    first = ids(stream)
    stream.load_state_dict(start)
    assert ids(stream) == first


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 9}, "seed=9, not 0"),
        ({"num_tasks": 3}, "num_tasks=3, not 17"),
        ({"position": 18}, "position 18 is outside"),
        ({"position": -1}, "position -1 is outside"),
    ],
)
def test_the_position_of_another_stream_is_refused(change, message):
    stream = make_stream()
    with pytest.raises(SettingsError, match=message):
        stream.load_state_dict({**stream.state_dict(), **change})
    assert stream.position == 0


def test_a_stream_needs_stages_with_tasks():
    with pytest.raises(SettingsError, match="at least one stage"):
        TaskStream([])
    with pytest.raises(SettingsError, match="'x' needs num_tasks >= 1"):
        TaskStream([Stage("x", EchoSource(), 0)])


def test_a_task_is_told_by_its_position_wherever_the_stream_stands():
    stream = make_stream(3)
    expected = ids(make_stream(3))
    assert [stream.task_at(position).task_id for position in reversed(range(17))] == expected[::-1]
    assert stream.position == 0
