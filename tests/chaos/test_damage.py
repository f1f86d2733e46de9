"""A run whose files are damaged is refused by the file's name, or goes on to the same results."""

from collections import Counter

import pytest
from damage import DAMAGES, DamagedRuns

_NUM_SEEDS = 100


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTPEFT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield DamagedRuns(tmp_path_factory.mktemp("damage"))


def test_no_damage_is_resumed_with_other_results(runs):
    outcomes = [runs.try_damage(seed) for seed in range(_NUM_SEEDS)]
    assert [outcome for outcome in outcomes if outcome.violation] == []
    assert {outcome.damage for outcome in outcomes} == set(DAMAGES)
    results = Counter(outcome.result == "went on" for outcome in outcomes)
    assert min(results[True], results[False]) > _NUM_SEEDS / 4
