"""Lapses of the oracle of OS-interaction: valid commands with the commonest choices."""

from collections import Counter
from random import Random

import pytest

from agentpeft.envs import Outcome
from agentpeft.envs.os_interaction.env import OSInteractionEnv
from agentpeft.envs.os_interaction.lapses import write_with_lapses

CHOICES = [
    ("mkdir -p /srv/a/b", "mkdir /srv/a/b"),
    ("cp -r /srv/a /srv/b", "cp /srv/a /srv/b"),
    ("chown -R ann /srv/a", "chown ann /srv/a"),
    ("useradd -m ann", "useradd ann"),
    ("tee -a /a /b <<< 'x' > /dev/null", "tee /a /b <<< 'x' > /dev/null"),
    ("ls -A /srv > /a.txt", "ls /srv > /a.txt"),
    ("echo x >> /a", "echo x > /a"),
    ("wc -c < /a", "wc -l < /a"),
    ("grep -vw x /a", "grep -w x /a"),
    ("chmod go-r /a", "chmod u+x /a"),
    ("usermod -d /srv/x ann", "usermod -s /srv/x ann"),
    ("chage -W 7 ann", "chage -M 7 ann"),
    ("gpasswd -d ann staff", "gpasswd -a ann staff"),
]
WITHOUT = ["mkdir -m 700 /srv/a-p", "chmod 750 /a", "useradd -s /bin/sh ann", "sed -i 3d /a-r"]


@pytest.mark.parametrize(("command", "lapse"), CHOICES)
def test_each_choice_lapses_in_its_share(command, lapse):
    assert write_with_lapses(command, 0.0, Random(0)) == command
    assert write_with_lapses(command, 1.0, Random(0)) == lapse
    assert write_with_lapses(lapse, 1.0, Random(0)) == lapse
    written = Counter(write_with_lapses(command, 0.7, Random(seed)) for seed in range(500))
    assert set(written) == {command, lapse}
    assert written[lapse] / 500 == pytest.approx(0.7, abs=0.08)


@pytest.mark.parametrize("command", WITHOUT)
def test_names_values_and_all_else_stay(command):
    assert write_with_lapses(command, 1.0, Random(0)) == command


def test_an_answer_is_what_its_own_commands_print(any_sandbox):
    env = OSInteractionEnv(skills=["wc", "ls"], oracle_lapses=1.0)
    outcomes = Counter()
    for seed in range(40):
        env.reset(seed=seed)
        command, end = env.oracle_actions(env.task)
        printed = env.step(command)[0]
        if env.task.wants_answer:
            assert end == f"Act: answer({' '.join(printed.split())})"
        outcomes[env.step(end)[4]["outcome"]] += 1
    assert set(outcomes) == {Outcome.SUCCESS, Outcome.FAILURE}
    assert min(outcomes.values()) >= 5
    env.close()
