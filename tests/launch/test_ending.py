"""How commands end: lines for a person on a terminal, JSON off it or with `--json`."""

import io
import json

import pytest

from agentpeft.launch.run.ending import finish, say_policy, say_time


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("output", "as_json", "is_told"),
    [(Screen, False, True), (Screen, True, False), (io.StringIO, False, False)],
)
def test_a_command_ends_for_its_reader(output, as_json, is_told):
    shown = output()
    finish({"rows": 3}, "3 rows written", "next: read them", as_json=as_json, output=shown)
    expected = "3 rows written\nnext: read them" if is_told else json.dumps({"rows": 3})
    assert shown.getvalue() == expected + "\n"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("checkpoint-000020", "adapter (iteration 20)"),
        ("checkpoint-000020-merged", "merged adapter (iteration 20)"),
        ("my-checkpoint-000020", "my-checkpoint-000020"),
        ("base", "base"),
    ],
)
def test_a_checkpoint_is_called_by_its_iteration(name, said):
    assert say_policy(name) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(42.4, "42 seconds"), (119.0, "119 seconds"), (500.0, "8 minutes"), (9000.0, "2 hours")],
)
def test_a_duration_is_said_in_its_largest_fitting_unit(seconds, said):
    assert say_time(seconds) == said
