"""A trainer with more descriptors open than `select` can name."""

import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from small_sandbox import SMALL

from agentpeft.envs.os_interaction.sandboxes import SandboxKind, make_sandbox

NUM_OPEN = 1_100


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Whatever is opened within has a number above 1,023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4 * NUM_OPEN), hard))
    with ExitStack() as opened:
        for _ in range(NUM_OPEN):
            opened.callback(os.close, os.open("/dev/null", os.O_RDONLY))
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_many_open_descriptors_change_nothing(many_descriptors, sandbox_kind: SandboxKind):
    sandbox = make_sandbox(sandbox_kind, SMALL)
    for _ in range(2):
        sandbox.reset()
        assert sandbox.run("echo fine; yes | head -c 100000 | wc -c", 10).output == "fine\n100000\n"
        assert sandbox.run("sleep 9", 0.3).is_timeout
        assert sandbox.freeze().read("/etc/hostname", 100) is not None
        assert sandbox.check("echo checked", 10).output == "checked\n"
    sandbox.close()
