"""A trainer with many descriptors open: more than `select` can name, and any number next."""

import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from small_sandbox import SMALL

from agentpeft.envs.os_interaction.sandboxes.sandbox import SandboxKind, make_sandbox

NUM_OPEN = 1_100


@contextmanager
def descriptors_below(number: int) -> Iterator[None]:
    """Whatever is opened within has that number or one above."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4 * NUM_OPEN), hard))
    with ExitStack() as opened:
        while (descriptor := os.open("/dev/null", os.O_RDONLY)) < number:
            opened.callback(os.close, descriptor)
        os.close(descriptor)
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_many_open_descriptors_change_nothing(sandbox_kind: SandboxKind):
    with descriptors_below(NUM_OPEN):
        sandbox = make_sandbox(sandbox_kind, SMALL)
        for _ in range(2):
            sandbox.reset()
            result = sandbox.run("echo fine; yes | head -c 100000 | wc -c", 10)
            assert result.output == "fine\n100000\n"
            assert sandbox.run("sleep 9", 0.3).is_timeout
            assert sandbox.freeze().read("/etc/hostname", 100) is not None
            assert sandbox.check("echo checked", 10).output == "checked\n"
        sandbox.close()


@pytest.mark.parametrize("number", [*range(3, 10), *range(95, 101), *range(196, 202)])
def test_no_number_of_a_descriptor_is_taken(number, control_groups):
    with descriptors_below(number):
        sandbox = make_sandbox("bubblewrap", SMALL)
        sandbox.reset()
        assert sandbox.run("ls /proc/self/fd | wc -l", 10).output == "4\n"
        sandbox.close()
