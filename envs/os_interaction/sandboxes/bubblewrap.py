"""Episodes under bubblewrap, without a daemon: `BubblewrapSandbox`."""

import atexit
import os
import shutil
from typing import Any

from agentpeft.envs.errors import EnvFault
from agentpeft.envs.os_interaction.sandboxes.cgroups import Cgroups
from agentpeft.envs.os_interaction.sandboxes.channel import ChannelClosedError
from agentpeft.envs.os_interaction.sandboxes.helper_process import HelperProcess
from agentpeft.envs.os_interaction.sandboxes.identity import find_identity
from agentpeft.envs.os_interaction.sandboxes.images import prepare_root
from agentpeft.envs.os_interaction.sandboxes.protocol import (
    CommandResult,
    SandboxLimits,
)
from agentpeft.envs.os_interaction.sandboxes.served_sandbox import (
    ServedSandbox,
    read_result,
)


class BubblewrapSandbox(ServedSandbox):
    """A `Sandbox` by overlay, namespaces and bubblewrap; see docs/environments/os_sandboxes.md.

    One helper process and its cgroups are kept from episode to episode; `close` or the end of this
    process ends them.
    """

    def __init__(self, limits: SandboxLimits | None = None, image: str | None = None) -> None:
        """`image`: a tar's path, an image that docker has, or None for the default one.

        Raises: EnvFault with what to install.
        """
        self._limits = limits or SandboxLimits()
        self._image = image
        self._bwrap = _find_bubblewrap()
        self._identity = find_identity()
        self._owner_pid = os.getpid()
        self._helper: HelperProcess | None = None
        self._cgroups: Cgroups | None = None

    @property
    def limits(self) -> SandboxLimits:
        """What an episode may use."""
        return self._limits

    def reset(self) -> None:
        """See `Sandbox.reset`."""
        if self._helper is None:
            self._start()
        self._files = None
        self.ask("reset")

    def _check(self, command: str, timeout_s: float) -> CommandResult:
        return read_result(self.ask("check", command, timeout_s, timeout_s=timeout_s))

    def _make_checker(self) -> "BubblewrapSandbox":
        return BubblewrapSandbox(self._limits, self._image)

    def close(self) -> None:
        """See `Sandbox.close`. In a forked child it does nothing."""
        if os.getpid() != self._owner_pid:
            return
        self._close_checker()
        if self._helper:
            self._helper.close()
            self._helper = None
        if self._cgroups:
            self._cgroups.close()
            self._cgroups = None
            atexit.unregister(self.close)

    def ask(self, operation: str, *arguments: object, timeout_s: float = 0.0) -> Any:
        """Returns the helper's answer; None if memory ran out under it. Raises: EnvFault."""
        if self._helper is None:
            raise EnvFault(f"a sandbox must be reset before {operation!r}")
        try:
            return self._helper.channel.request(operation, *arguments, timeout_s=timeout_s)
        except ChannelClosedError:
            self.close()
            raise

    def _start(self) -> None:
        folder = prepare_root(self._image, self._identity)
        self._cgroups = Cgroups(self._limits)
        atexit.register(self.close)
        descriptors = self._cgroups.descriptors
        config: dict[str, object] = {
            **vars(self._limits),
            "folder": str(folder),
            "bwrap": self._bwrap,
            "cgroups": descriptors,
        }
        try:
            self._helper = HelperProcess(config, self._identity, descriptors)
        except EnvFault:
            self.close()
            raise


def _find_bubblewrap() -> str:
    path = shutil.which("bwrap")
    if not path:
        raise EnvFault("no bubblewrap: apt-get install bubblewrap uidmap")
    return path
