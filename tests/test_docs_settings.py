"""The page of settings is what the settings say of themselves."""

import subprocess
import sys
from pathlib import Path

from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.section import Section

ROOT = Path(__file__).parents[1]


def test_every_setting_says_what_it_does():
    undescribed = []
    for name, field in Settings.model_fields.items():
        is_section = isinstance(field.default, Section)
        fields = type(field.default).model_fields if is_section else {name: field}
        undescribed += [key for key, own in fields.items() if not own.description]
    assert not undescribed


def test_the_page_is_as_the_settings_are():
    script = str(ROOT / ".ci" / "settings_page.py")
    done = subprocess.run([sys.executable, script, "--check"], cwd=ROOT, check=False)
    assert done.returncode == 0, "write it anew: python .ci/settings_page.py"
