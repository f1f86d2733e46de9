"""`EngineHost`: one vLLM, and an engine over it for each env runner that asks for one.

The runners are of several runs. They share the base's weights and the memory for keys and values;
each has LoRA slots of its own (`VllmEngine`). Who is not heard of for `LEASE_S` seconds, as after
`kill -9`, loses its slots once another needs them.
"""

import asyncio
import hashlib
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from agentpeft.envs import SettingsError
from agentpeft.policies.engines.vllm.settings import VllmSettings
from agentpeft.policies.errors import EngineError, EngineLostError
from agentpeft.policies.messages import (
    AdapterAck,
    AdapterVersion,
    Completion,
    Floats,
    GenerationRequest,
    Ids,
)
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers.owned_process import end_with

if TYPE_CHECKING:  # it imports vllm
    from agentpeft.policies.engines.vllm.engine import VllmEngine
    from agentpeft.policies.engines.vllm.process import VllmProcess

LEASE_S = 20.0
BEAT_S = 4.0
"""How often a runner tells that it is there."""


class NoSlotError(EngineError):
    """All slots are taken; some may be free later."""


@dataclass(frozen=True)
class Wish:
    """What a runner needs: of which base, up to which rank, how many adapter versions at once.

    `run` is for messages.
    """

    run: str
    base: str
    dtype: str
    rank: int
    num_versions: int
    max_context_tokens: int
    stop_token_ids: tuple[int, ...]


@dataclass(frozen=True)
class HostState:
    """How many LoRA slots are free, and how many runners each run has here."""

    num_free: int
    runs: dict[str, int]


@dataclass(eq=False)
class _Tenant:
    run: str
    engine: "VllmEngine"
    heard_s: float


class EngineHost:
    """Serves runners by name: each calls `attach` first, and `keep` now and then.

    All methods are for Ray's event loop. Raises: EngineError where a runner is not known, as after
    this process was begun anew. It ends itself once vLLM's own process has ended, for Ray to begin
    it anew.
    """

    def __init__(self, settings: Settings, num_slots: int) -> None:
        """`num_slots`: how many adapter versions are served at once, of all runs together."""
        self._settings, self._num_slots = settings, num_slots
        self._starting = asyncio.Lock()
        self._process: VllmProcess | None = None
        self._tenants: dict[str, _Tenant] = {}

    async def start(self) -> None:
        """Starts vLLM, unless it runs. Raises: SettingsError."""
        await self._started()

    async def look(self) -> HostState:
        """Returns what is free, and who is here."""
        runs = Counter(tenant.run for tenant in self._tenants.values())
        return HostState(self._num_free, dict(runs))

    async def attach(self, name: str, wish: Wish) -> None:
        """Gives a runner an engine. Raises: SettingsError on what does not fit, NoSlotError."""
        from agentpeft.policies.engines.vllm.engine import VllmEngine

        process = await self._started()
        own = _fit(wish, process.settings, self._base)
        await self._make_room(wish.num_versions)
        engine = VllmEngine(process, wish.stop_token_ids, own, owns_process=False)
        self._tenants[name] = _Tenant(wish.run, engine, time.monotonic())

    async def keep(self, name: str) -> None:
        """Notes that a runner is there."""
        self._find(name)

    async def detach(self, name: str) -> None:
        """Frees a runner's slots."""
        if tenant := self._tenants.pop(name, None):
            await asyncio.to_thread(tenant.engine.close)

    async def close_sessions(self, name: str, sessions: Sequence[str]) -> None:
        """Forgets a runner's sessions; what they asked for is cancelled."""
        if name in self._tenants:
            self._find(name).update_sessions(closed=sessions)

    async def generate(self, name: str, request: GenerationRequest) -> Completion:
        """As `Engine.generate`; opens the session."""
        engine = self._find(name)
        engine.update_sessions(opened=[request.session])
        with self._blaming_vllm():
            return await engine.generate(request)

    async def load_adapter(self, name: str, adapter: AdapterVersion) -> tuple[AdapterAck, float]:
        """As `Engine.load_adapter`; returns the served effect too."""
        engine = self._find(name)
        try:
            with self._blaming_vllm():
                ack = await asyncio.to_thread(engine.load_adapter, adapter)
        except (OSError, SafetensorError) as error:  # it is written into a temporary folder
            raise EngineError(f"{adapter.name} cannot be loaded: {error}") from None
        return ack, engine.served_effect

    async def score(self, name: str, sequences: Sequence[Ids]) -> list[Floats]:
        """As `Engine.score`."""
        with self._blaming_vllm():
            return await self._find(name).score(sequences)

    def close(self) -> None:
        """Ends vLLM; idempotent."""
        if self._process is not None:
            self._process.close()

    @property
    def _num_free(self) -> int:
        taken = sum(tenant.engine.num_versions for tenant in self._tenants.values())
        return self._num_slots - taken

    def _find(self, name: str) -> "VllmEngine":
        self._end_with_vllm()
        tenant = self._tenants.get(name)
        if tenant is None:
            raise EngineLostError("the shared engine was begun anew, without this run's adapters")
        tenant.heard_s = time.monotonic()
        return tenant.engine

    async def _make_room(self, num_slots: int) -> None:
        """Takes the slots of those that are silent, if they are needed. Raises: NoSlotError."""
        earliest_s = time.monotonic() - LEASE_S
        for name, tenant in list(self._tenants.items()):
            if self._num_free < num_slots and tenant.heard_s < earliest_s:
                await self.detach(name)
        if self._num_free < num_slots:
            raise NoSlotError(
                f"a runner needs {num_slots} slots for adapters, and of {self._num_slots} "
                f"{self._num_free} are free (runners: {(await self.look()).runs})"
            )

    @property
    def _is_dead(self) -> bool:
        return self._process is not None and self._process.is_dead

    @contextmanager
    def _blaming_vllm(self) -> Iterator[None]:
        """Where vLLM has ended it is no matter whose request was under way."""
        try:
            yield
        except EngineError as error:
            if self._is_dead:
                raise EngineLostError(str(error)) from None
            raise

    def _end_with_vllm(self) -> None:
        if self._is_dead:
            os._exit(1)

    async def _started(self) -> "VllmProcess":
        self._end_with_vllm()
        async with self._starting:
            if self._process is None:
                end_with(os.getppid())  # Ray's process on this machine
                self._process = await asyncio.to_thread(self._start)
            return self._process

    def _start(self) -> "VllmProcess":
        from agentpeft.policies.engines.vllm.settings import read_vllm_settings
        from agentpeft.policies.engines.vllm.start import check_vllm, start_process
        from agentpeft.policies.models.base_files import find_base, find_served_base

        check_vllm()
        settings = self._settings
        self._base = base_name(find_base(settings)[0], settings)
        folder, _ = find_served_base(settings, settings.env_runners.num_gpus_per_env_runner)
        own = read_vllm_settings(settings, folder)
        return start_process(folder, replace(own, num_adapters=self._num_slots))


def base_name(folder: Path, settings: Settings) -> str:
    """Returns what tells a base from others, on all machines.

    It is its folder's name (the hub's is the revision), a hash of its config and of how many bytes
    its weights have, and whether it is in 4 bits.
    """
    files = sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")])
    sizes = [(file.name, file.stat().st_size) for file in files]
    known = (folder / "config.json").read_bytes() + repr(sizes).encode()
    bits = " in 4 bits" if settings.model.is_in_4_bits else ""
    return f"{folder.name} ({hashlib.sha256(known).hexdigest()[:8]}){bits}"


def _fit(wish: Wish, settings: VllmSettings, base: str) -> VllmSettings:
    """Returns the settings of a runner's engine. Raises: SettingsError."""
    limit = wish.max_context_tokens
    faults = {
        f"its base is {wish.base}, and the engines' is {base}": wish.base != base,
        f"model.dtype is {wish.dtype} (as auto is without GPUs), and theirs {settings.dtype}": (
            wish.dtype != settings.dtype
        ),
        f"lora.rank is {wish.rank}, and they have slots for rank {settings.max_rank}": (
            wish.rank > settings.max_rank
        ),
        f"its conversations have up to {limit} tokens (env_runners.max_context_tokens, or the "
        f"model's limit), and theirs {settings.max_context_tokens}": (
            limit > settings.max_context_tokens
        ),
    }
    for fault, is_there in faults.items():
        if is_there:
            raise SettingsError(f"the run {wish.run!r} cannot share engines: {fault}")
    return replace(settings, num_adapters=wish.num_versions, max_context_tokens=limit)
