"""Which skills a bash script shows."""

import pytest

from agentpeft.envs import SettingsError
from agentpeft.envs.os_interaction.skills import SKILLS, check_skills, detect_skills


def test_there_are_lifelongagentbenchs_29():
    assert len(SKILLS) == len(set(SKILLS)) == 29


@pytest.mark.parametrize(
    ("script", "skills"),
    [
        ("ls -l / | grep '^d' | wc -l", ("grep", "ls", "wc")),
        ("cd /srv && mkdir a;touch b", ("cd", "mkdir", "touch")),
        ("find . -name '*.x' -exec rm {} +", ("find", "rm")),
        ("find . | xargs grep -l x", ("find", "grep")),
        ("for f in *; do mv $f /x; done", ("mv",)),
        ("if [ -e a ]; then rm a; else touch a; fi", ("rm", "touch")),
        ('x=$(cat f); echo "$(awk 1 g)"', ("awk", "cat", "echo")),
        ("LANG=C sed -i s/a/b/ f", ("sed",)),
        ("/usr/bin/chmod 600 f", ("chmod",)),
        ("# rm all\necho 'rm; ls' > cat", ("echo",)),
        ("(exit 3); ! grep x f", ("exit", "grep")),
        ("catalog ls.txt", ()),
        ("", ()),
    ],
)
def test_commands_count_where_commands_stand(script, skills):
    assert detect_skills(script) == skills


def test_an_unknown_skill_is_refused_with_a_suggestion():
    assert check_skills(["wc", "ls", "wc"]) == ("ls", "wc")
    with pytest.raises(SettingsError, match="did you mean 'useradd'"):
        check_skills(["useraddd"])
