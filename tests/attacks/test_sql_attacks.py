"""Every attack by SQL, on every backend of DB-bench."""

import pytest
import sql_exhaustion
import sql_grading
import sql_reach
from attack import Attack
from playing import Player

ATTACKS = [*sql_exhaustion.ATTACKS, *sql_reach.ATTACKS, *sql_grading.ATTACKS]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_attack_fails_and_harms_nobody(sql_player: Player, attack: Attack) -> None:
    assert sql_player.play(attack).problems == []


def test_there_are_many_different_attacks() -> None:
    assert len({(attack.messages, attack.expected.task) for attack in ATTACKS}) == len(ATTACKS)
    assert len(set(map(str, ATTACKS))) == len(ATTACKS)
    assert len(ATTACKS) >= 300
