"""Sandboxes for shell tasks: bubblewrap (no daemon) and docker behind one protocol.

`make_sandbox` chooses one. docs/environments/os_sandboxes.md says what each protects against.
"""

import sys
from typing import Literal

from agentpeft.envs.core.errors import EnvFault, check_choice
from agentpeft.envs.os_interaction.sandboxes.sandbox import (
    CommandResult,
    FileStat,
    FrozenFiles,
    Interpreter,
    Sandbox,
    SandboxLimits,
    TrustedScript,
)

__all__ = [
    "CommandResult",
    "FileStat",
    "FrozenFiles",
    "Interpreter",
    "Sandbox",
    "SandboxKind",
    "SandboxLimits",
    "TrustedScript",
    "make_sandbox",
]

SandboxKind = Literal["auto", "bubblewrap", "docker"]


def make_sandbox(
    kind: SandboxKind = "auto",
    limits: SandboxLimits | None = None,
    image: str | None = None,
    runtime: str | None = None,
) -> Sandbox:
    """Returns a sandbox; nothing heavy starts before its first `reset`.

    Args:
        kind: "auto" takes bubblewrap where it can work, else docker.
        limits: What an episode may use; None: the defaults.
        image: The name of an image that docker has, or, for bubblewrap, a tar's path too; None: the
            default one, which is made at need.
        runtime: Another OCI runtime that the docker daemon knows, such as "runsc".

    Raises: EnvFault with what to install or to start, SettingsError.
    """
    check_choice("kind of sandbox", kind, ("auto", "bubblewrap", "docker"))
    if kind == "docker" or runtime:
        return _make_docker(limits, image, runtime)
    if kind == "bubblewrap":
        return _make_bubblewrap(limits, image)
    try:
        return _make_bubblewrap(limits, image)
    except EnvFault as no_bubblewrap:
        try:
            return _make_docker(limits, image, runtime)
        except EnvFault as no_docker:
            raise EnvFault(f"no sandbox: {no_bubblewrap}; or {no_docker}") from None


def _make_bubblewrap(limits: SandboxLimits | None, image: str | None) -> Sandbox:
    if not sys.platform.startswith("linux"):
        raise EnvFault(f"bubblewrap needs Linux, and this is {sys.platform}")
    from agentpeft.envs.os_interaction.sandboxes.bubblewrap import BubblewrapSandbox

    return BubblewrapSandbox(limits, image)


def _make_docker(limits: SandboxLimits | None, image: str | None, runtime: str | None) -> Sandbox:
    try:
        from agentpeft.envs.os_interaction.sandboxes.docker import DockerSandbox
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("docker", "requests"):
            raise
        raise EnvFault(f"no docker client ({error}): pip install agentpeft[os]") from None
    return DockerSandbox(limits, image, runtime)
