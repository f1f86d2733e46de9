"""Episodes under bubblewrap, without a daemon: `BubblewrapSandbox`.

A container runtime with the same files, limits and shell plays fewer episodes a second: crun 1.8
0.75 (0.65-0.90) of this sandbox's, runc 1.1 0.36 (0.25-0.45), and 0.35 and 0.14 with an `exec` for
each command. Under crun all 551 attacks by a shell hold, but an episode can take every inotify
instance of the host's root: no runtime sets limits of a user namespace, nor has another user own
one (`benchmarks/container_runtimes.py`).
"""

import atexit
import logging
import os
import shutil
import time
from typing import Any

from agentpeft.envs.core.errors import EnvFault
from agentpeft.envs.os_interaction.sandboxes.cgroups import Cgroups
from agentpeft.envs.os_interaction.sandboxes.channel import ChannelClosedError
from agentpeft.envs.os_interaction.sandboxes.helper_process import HelperProcess, find_identity
from agentpeft.envs.os_interaction.sandboxes.images import prepare_root
from agentpeft.envs.os_interaction.sandboxes.sandbox import CommandResult, Sandbox, SandboxLimits

_MAX_HELD_BYTES = 16 << 20
_RELEASE_S = 0.5
_log = logging.getLogger(__name__)


class BubblewrapSandbox(Sandbox):
    """A `Sandbox` by overlay, namespaces and bubblewrap; see docs/environments/os_sandboxes.md.

    One helper process and its cgroups are kept from episode to episode; `close` or the end of this
    process ends them.
    """

    def __init__(self, limits: SandboxLimits | None = None, image: str | None = None) -> None:
        """`image`: a tar's path, an image that docker has, or None for the default one.

        Raises: EnvFault with what to install.
        """
        super().__init__(limits, image)
        self._image = image
        self._bwrap = shutil.which("bwrap")
        if self._bwrap is None:
            raise EnvFault("no bubblewrap: apt-get install bubblewrap uidmap")
        self._identity = find_identity()
        self._owner_pid = os.getpid()
        self._helper: HelperProcess | None = None
        self._cgroups: Cgroups | None = None
        self._first_held_bytes: int | None = None

    def reset(self) -> None:
        """See `Sandbox.reset`."""
        super().reset()
        if self._helper is None:
            self._start()
        self.ask("reset")
        if self._holds_memory():  # of an episode before, which this one would lack
            _log.warning("a bubblewrap sandbox held memory of an earlier episode: it is replaced")
            self.close()
            self._start()
            self.ask("reset")

    def close(self) -> None:
        """See `Sandbox.close`. In a forked child it does nothing."""
        if os.getpid() != self._owner_pid:
            return
        super().close()
        if self._helper:
            self._helper.close()
            self._helper = None
        if self._cgroups:
            self._cgroups.close()
            self._cgroups = None
            atexit.unregister(self.close)

    def ask(self, operation: str, *arguments: object, timeout_s: float = 0.0) -> Any:
        """See `Sandbox.ask`; None if memory ran out under it. Raises: EnvFault."""
        if self._helper is None:
            raise EnvFault(f"a sandbox must be reset before {operation!r}")
        try:
            return self._helper.channel.request(operation, *arguments, timeout_s=timeout_s)
        except ChannelClosedError:
            self.close()
            raise

    def _check(self, command: str, script: str, timeout_s: float) -> CommandResult:
        answer = self.ask("check", command, script, timeout_s, timeout_s=timeout_s)
        return CommandResult.read(answer)

    def _holds_memory(self) -> bool:
        """Returns whether memory is still charged beyond that of an empty episode."""
        assert self._cgroups  # noqa: S101 (`_start` has made them)
        deadline_s = time.monotonic() + _RELEASE_S  # the kernel frees some of it later
        while True:
            held_bytes = self._cgroups.measure_held_bytes()
            if self._first_held_bytes is None:
                self._first_held_bytes = held_bytes
            if held_bytes <= self._first_held_bytes + _MAX_HELD_BYTES:
                return False
            if time.monotonic() > deadline_s:
                return True
            time.sleep(0.01)

    def _start(self) -> None:
        self._first_held_bytes = None
        folder = prepare_root(self._image, self._identity)
        self._cgroups = Cgroups(self.limits)
        atexit.register(self.close)
        descriptors = self._cgroups.descriptors
        config = {"folder": str(folder), "bwrap": self._bwrap, "cgroups": descriptors}
        try:
            self._helper = HelperProcess(vars(self.limits) | config, self._identity, descriptors)
        except BaseException:
            self.close()
            raise
