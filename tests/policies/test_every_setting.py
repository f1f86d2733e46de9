"""Each setting is read by something; what it does is tested beside the part that reads it."""

import ast
from pathlib import Path

import pytest

from agentpeft.policies.settings.config import setting_names

ROOT = Path(__file__).parents[2]
ONLY_CHECKS = {"config.py", "algorithm_config.py"}
READ = {
    node.attr
    for room in ("policies", "launch")
    for path in (ROOT / room).rglob("*.py")
    if path.name not in ONLY_CHECKS
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
}


@pytest.mark.parametrize("name", setting_names())
def test_a_setting_is_read_outside_of_its_validation(name):
    assert name.rpartition(".")[2] in READ
