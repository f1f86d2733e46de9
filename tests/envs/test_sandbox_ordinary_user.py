"""The bubblewrap sandbox of a user who is not root."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_sandbox import SMALL

from agentpeft.envs import EnvFault
from agentpeft.envs.os_interaction.sandboxes.sandbox import make_sandbox

CHANGE = "useradd ann && touch /f && chown ann /f && su ann -c 'id -un'"


@pytest.fixture
def user_cache(ordinary_user: int) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    os.chown(folder, ordinary_user, ordinary_user)
    yield folder
    shutil.rmtree(folder)


def play(folder: Path) -> None:
    os.environ["XDG_CACHE_HOME"] = str(folder)
    sys.executable = "/usr/bin/python3"  # the tests' own may be out of this user's reach
    sandbox = make_sandbox("bubblewrap", SMALL)
    sandbox.reset()
    assert sandbox.run(CHANGE, 10).output == "ann\n"
    assert sandbox.run("sleep 60", 0.5).is_timeout
    sandbox.run("setsid sleep 300 & echo $! >/pid; sleep 0.3", 10)
    assert sandbox.check_live("[ $(pgrep -fx 'sleep 300') = $(cat /pid) ]", 30).exit_code == 0
    sandbox.freeze()
    sandbox.reset()
    assert sandbox.run(CHANGE, 10).output == "ann\n"
    spawn = "for i in {1..80}; do sleep 9 & done 2>/dev/null"
    sandbox.run(spawn, 0.5)
    found = sandbox.freeze().stat("/f")
    assert found is not None
    assert found.uid == 1000
    assert sandbox.check("stat -c %U /f", 10).output == "ann\n"
    sandbox.close()


def test_an_ordinary_user_plays_an_episode(ordinary_user: int, user_cache: Path):
    pid = os.fork()
    if not pid:
        try:
            os.setgroups([])
            os.setresgid(*[ordinary_user] * 3)
            os.setresuid(*[ordinary_user] * 3)
            play(user_cache)
            os._exit(0)
        except (EnvFault, AssertionError, OSError) as error:
            os.write(2, repr(error).encode())
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
