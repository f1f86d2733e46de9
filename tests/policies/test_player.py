"""Engines that another package starts: `env_runners.shared_engines = "module:NAME"`."""

import pytest

from agentpeft.envs import SettingsError
from agentpeft.policies.engines.player import make_player
from agentpeft.policies.settings.config import Settings


def settings_with(shared_engines):
    values = {"engine": "vllm", "num_env_runners": 1, "shared_engines": shared_engines}
    return Settings(env_runners=values)


def test_a_module_that_the_setting_names_starts_the_engine(tmp_path, monkeypatch):
    (tmp_path / "my_engines.py").write_text(
        "def start_shared(settings, name):\n    return settings.experiment, name\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    player = make_player(settings_with("my_engines:sweep"))
    assert (player.chat, player.engine) == ("experiment", "sweep")


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("no_such_module:sweep", "'no_such_module' cannot be imported"),
        ("json:sweep", "json has no 'start_shared'"),
    ],
)
def test_a_module_that_starts_no_engine_is_told(named, says):
    with pytest.raises(SettingsError, match=f"env_runners.shared_engines '{named}': .*{says}"):
        make_player(settings_with(named))


@pytest.mark.parametrize("named", ["sweep", ":sweep", "agentpeft.apps.shared_engines:"])
def test_a_name_without_its_module_is_answered_with_what_to_write(named):
    with pytest.raises(SettingsError, match=r"as agentpeft\.apps\.shared_engines:sweep"):
        settings_with(named)
