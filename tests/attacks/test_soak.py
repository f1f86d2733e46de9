"""A short soak: innocent episodes beside attacks succeed, and nothing stays behind."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentpeft.envs.os_interaction.sandboxes.sandbox import SandboxKind

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "soak.py"


def soak(tmp_path: Path, *options: str) -> dict:
    """Returns what 60 episodes show; a tenth of them are attacks."""
    command = [sys.executable, str(SCRIPT), "--num-episodes", "60", "--num-samples", "12"]
    command += ["--output", str(tmp_path), *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    line = json.loads(done.stdout)
    samples = json.loads(next(tmp_path.glob("soak-*.json")).read_text())["samples"]
    assert [sample["episode"] for sample in samples] == list(range(5, 61, 5))
    return line


@pytest.mark.parametrize("seed", ["0", "1"])
@pytest.mark.parametrize("backend", ["sqlite", "mysql"])
def test_databases(backend: str, seed: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = str(request.getfixturevalue("mysql_url")) if backend == "mysql" else backend
    line = soak(tmp_path, "--env", "db_bench", "--backend", url, "--seed", seed)
    assert line["innocent"] == {"success": 54}
    assert line["problems"] == []
    assert line["is_flat"], line["growth"]
    assert not {"processes", "cgroups", "temporary_files", "schemas", "accounts"} & set(
        line["left"]
    )


def test_sandboxes(sandbox_kind: SandboxKind, tmp_path: Path) -> None:
    line = soak(tmp_path, "--env", "os", "--backend", sandbox_kind)
    assert line["innocent"] == {"success": 54}
    assert line["problems"] == []
    assert line["is_flat"], line["growth"]
    assert not {"processes", "cgroups", "temporary_files", "containers"} & set(line["left"])
