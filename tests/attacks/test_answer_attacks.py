"""Every attack by an answer, on Arithmetic and GSM8K."""

from collections.abc import Iterator

import pytest
from answer_attacks import ATTACKS
from attack import Attack
from games import make_answer_env
from host import Host
from playing import Player

_FIRST_TASKS = {"arithmetic": "addition:1234500+67:plain", "gsm8k": "whole"}
_LIMIT_S = 0.1
"""An answer is read in time that is linear in its length: far below this."""


@pytest.fixture(scope="module")
def players(host: Host) -> Iterator[dict[str, Player]]:
    envs = {game: make_answer_env(game) for game in _FIRST_TASKS}
    yield {
        game: Player(env, host, _LIMIT_S, default_task=_FIRST_TASKS[game])
        for game, env in envs.items()
    }
    for env in envs.values():
        env.close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_attack_fails_and_harms_nobody(players: dict[str, Player], attack: Attack) -> None:
    assert players[attack.topic.game].play(attack).problems == []


def test_there_are_many_different_attacks() -> None:
    assert len({(attack.messages, attack.topic.game) for attack in ATTACKS}) >= 120
