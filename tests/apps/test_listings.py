"""`agentpeft envs` and `agentpeft configs`."""

import gymnasium

from agentpeft.apps.listings import configs, envs
from agentpeft.launch.run.run_folder import CONFIGS


def test_every_environment_and_every_preset_has_a_line(capsys):
    assert envs.main([]) == configs.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    ids = {name for name in gymnasium.registry if name.startswith("AgentPEFT/")}
    assert {line.split()[0] for line in lines} == ids | {path.stem for path in CONFIGS.iterdir()}
    assert all(line.endswith(".") and len(line.split()) > 4 for line in lines)
