"""Episodes in docker containers: `DockerSandbox`."""

from typing import Any

from agentpeft.envs.core.errors import EnvFault
from agentpeft.envs.os_interaction.sandboxes.channel import ChannelClosedError, Refusal
from agentpeft.envs.os_interaction.sandboxes.container_pool import ContainerPool, EpisodeContainer
from agentpeft.envs.os_interaction.sandboxes.live_checks import MAX_CHANGED_BYTES, VIEW
from agentpeft.envs.os_interaction.sandboxes.sandbox import CommandResult, Sandbox, SandboxLimits


class DockerSandbox(Sandbox):
    """A `Sandbox` with a new container for each episode; see docs/environments/os_sandboxes.md.

    Sandboxes of one process with the same settings share a pool of containers made ahead of use.
    An episode that ends its container or fills the disk continues in a new one, without its files.
    """

    def __init__(
        self,
        limits: SandboxLimits | None = None,
        image: str | None = None,
        runtime: str | None = None,
    ) -> None:
        """`image` None: the default one; `runtime` None: the daemon's default.

        Raises: EnvFault if no daemon answers.
        """
        super().__init__(limits, image, runtime)
        self._pool: ContainerPool | None = ContainerPool.share(*self._settings)
        self._container: EpisodeContainer | None = None

    def reset(self) -> None:
        """See `Sandbox.reset`."""
        super().reset()
        self.has_lost_files = False
        if self._pool and self._pool.is_broken:
            self.close()
        self._pool = self._pool or ContainerPool.share(*self._settings)
        self._replace(self._pool)

    def close(self) -> None:
        """See `Sandbox.close`."""
        super().close()
        pool, self._pool = self._pool, None
        container, self._container = self._container, None
        if pool and container:
            pool.discard(container)
        if pool:
            pool.release()

    def ask(self, operation: str, *arguments: object, timeout_s: float = 0.0) -> Any:
        """See `Sandbox.ask`; None if process 1 has ended under a command.

        Raises: EnvFault, Refusal.
        """
        if self._container is None or self._pool is None:
            raise EnvFault(f"a sandbox must be reset before {operation!r}")
        self._pool.need_watch()
        try:
            return self._container.channel.request(operation, *arguments, timeout_s=timeout_s)
        except (ChannelClosedError, Refusal) as error:
            if isinstance(error, Refusal) and operation != "freeze":
                raise
            self.has_lost_files = True
            container = self._replace(self._pool)
        return None if operation == "run" else container.channel.request(operation, *arguments)

    def _check(self, command: str, script: str, timeout_s: float) -> CommandResult:
        try:
            files = self.ask("list_changes", MAX_CHANGED_BYTES)
        except Refusal as refusal:
            return CommandResult(str(refusal), None)
        assert self._pool  # noqa: S101 (`ask` has raised without one)
        pool, container = self._pool, self._pool.take()
        try:
            why = container.channel.request("apply_changes", files, *VIEW, script)
            if why:
                return CommandResult(why, None)
            answer = container.channel.request("run", command, timeout_s, timeout_s=timeout_s)
            return CommandResult.read(answer)
        finally:
            pool.discard(container)

    def _replace(self, pool: ContainerPool) -> EpisodeContainer:
        if self._container:
            pool.discard(self._container)
            self._container = None
        self._container = pool.take()
        return self._container
