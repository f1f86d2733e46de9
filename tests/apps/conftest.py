"""Servers of MCP on each version of its library."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def mcp_2(tmp_path_factory) -> Path:
    """A folder with version 2 of `mcp` and what it needs, which hides the version 1 of here."""
    folder = tmp_path_factory.mktemp("mcp-2")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
    subprocess.run([*command, "mcp>=2,<3"], check=True, timeout=240)
    return folder


@pytest.fixture(params=[1, 2], ids=["mcp 1", "mcp 2"])
def mcp_variables(request) -> dict[str, str]:
    """The environment of a server that runs on each version of `mcp`."""
    folders = [str(ROOT)]
    if request.param == 2:
        folders.insert(0, str(request.getfixturevalue("mcp_2")))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
