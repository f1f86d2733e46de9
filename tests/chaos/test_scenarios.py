"""Ten of the random scenarios, four of them among the longest tests.

`benchmarks/chaos.py scenarios` plays any number of them.
"""

import pytest
from scenario import SENSELESS, Fault, Moment, Part, draw, play

SERIAL = [draw(seed, [Part.DRIVER]) for seed in range(1000, 1100)]
IN_RAY = [draw(seed, [Part.RUNNER, Part.LEARNER]) for seed in range(2000, 2100)]
OWN = [each for each in SERIAL if not each.in_ray]
SCENARIOS = [
    *OWN[:5],
    *[pytest.param(each, marks=pytest.mark.long) for each in OWN[5:9]],
    next(each for each in IN_RAY if each.fault == Fault.NO_MEMORY),  # kills: test_killed_parts
]


@pytest.mark.timeout(900)  # a scenario has limits of its own, which say more
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_a_disturbed_run_ends_well_or_in_one_line_and_goes_on_to_the_same(request, scenario):
    if scenario.fault == Fault.FULL_DISK:
        request.getfixturevalue("mounting")
    assert play(scenario).violations == []


def test_every_part_fault_and_moment_is_drawn():
    drawn = [draw(seed) for seed in range(2000)]
    assert {each.part for each in drawn} == set(Part)
    assert {each.fault for each in drawn} == set(Fault)
    assert {each.moment for each in drawn} == set(Moment)
    assert not {(each.part, each.fault) for each in drawn} & set(SENSELESS)
    assert not {(each.part, each.moment) for each in drawn} & set(SENSELESS)
    assert draw(7) == draw(7)
