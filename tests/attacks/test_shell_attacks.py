"""Every attack by a shell, in every sandbox of OS-interaction."""

import pytest
import shell_exhaustion
import shell_grading
import shell_reach
import shell_verdicts
from attack import Attack
from playing import Player

ATTACKS = [
    *shell_exhaustion.ATTACKS,
    *shell_reach.ATTACKS,
    *shell_grading.ATTACKS,
    *shell_verdicts.ATTACKS,
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_attack_fails_and_harms_nobody(shell_player: Player, attack: Attack) -> None:
    assert shell_player.play(attack).problems == []


def test_there_are_many_different_attacks() -> None:
    assert len({(attack.messages, attack.expected.task) for attack in ATTACKS}) == len(ATTACKS)
    assert len(set(map(str, ATTACKS))) == len(ATTACKS)
    assert len(ATTACKS) >= 300
