from random import Random

import pytest

from agentpeft.envs.tasks.task_random import TaskRandom


def both(seed):
    return TaskRandom(f"a task/{seed}"), Random(f"a task/{seed}")


@pytest.mark.parametrize("seed", range(20))
def test_draws_what_pythons_own_generator_draws(seed):
    ours, pythons = both(seed)
    sizes = Random(seed)
    for _ in range(300):
        elements = range(sizes.randint(1, 120))
        count = sizes.randint(0, len(elements))
        assert ours.choice(elements) == pythons.choice(elements)
        assert ours.sample(elements, count) == pythons.sample(elements, count)
        assert ours.randint(-3, count) == pythons.randint(-3, count)
        assert ours.below(len(elements)) == pythons.randrange(len(elements))
        expected = [pythons.randrange(len(elements)) for _ in range(count)]
        assert ours.many_below(len(elements), count) == expected
        order, pythons_order = list(elements), list(elements)
        ours.shuffle(order)
        pythons.shuffle(pythons_order)
        assert order == pythons_order
        assert ours.random() == pythons.random()


def test_refuses_what_cannot_be_drawn():
    ours, _ = both(0)
    with pytest.raises(IndexError):
        ours.choice("")
    with pytest.raises(ValueError, match="cannot take 3 of 2"):
        ours.sample("ab", 3)
