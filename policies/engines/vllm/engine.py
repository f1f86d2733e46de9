"""`VllmEngine`: the engines' protocol over vLLM: one run's sessions, and the adapters it serves."""

import asyncio
import math
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from agentpeft.policies.engines.protocol import Engine, limit_turn
from agentpeft.policies.engines.vllm.process import Slot, VllmProcess
from agentpeft.policies.engines.vllm.settings import VllmSettings
from agentpeft.policies.engines.vllm.weight_files import lora_rank, write_adapter
from agentpeft.policies.errors import EngineError
from agentpeft.policies.messages import (
    AdapterAck,
    AdapterVersion,
    Completion,
    Floats,
    GenerationRequest,
    Ids,
    StopReason,
)

_TICKETS = count()
"""Names of requests, over all engines of this process."""


@dataclass(frozen=True)
class _Asked:
    """A request under way."""

    future: Future[tuple[Ids, Floats, bool]]
    version: int
    ticket: str


class VllmEngine(Engine):
    """Serves many sessions at once, with the newest versions of one run's adapter.

    Several engines may share a process, each with slots of its own (serving "native"). What is kept
    of prompts is known by the adapter's version, and dropped with it. Fused weights are one
    version; a completion is of one in any case. Not deterministic: the tokens follow from their
    seeds, but rounding follows from what else is in the batch.
    """

    def __init__(
        self,
        process: VllmProcess,
        stop_token_ids: Iterable[int],
        settings: VllmSettings,
        *,
        owns_process: bool = True,
    ) -> None:
        """`settings.num_adapters` are this engine's own; a process it owns ends with it."""
        self._process, self._owns_process = process, owns_process
        self._settings, self._stops = settings, sorted(stop_token_ids)
        self.num_versions, self.served_effect = settings.num_adapters, math.nan
        self._served: dict[int, Slot | None] = {} if settings.needs_adapter else {0: None}
        """By version, the newest last."""
        self._slots: list[Slot] = []
        self._sessions: dict[str, _Asked | None] = {}
        """The request that each has under way."""
        self._is_closed = False

    def update_sessions(self, opened: Sequence[str] = (), closed: Sequence[str] = ()) -> None:
        """Announces and forgets sessions; what a closed one asked for is cancelled."""
        for session in closed:
            if under_way := self._sessions.pop(session, None):
                under_way.future.cancel()
        for session in opened:
            self._sessions.setdefault(session, None)

    async def generate(self, request: GenerationRequest) -> Completion:
        """Samples one turn.

        Raises: EngineError where the session is not open or has asked already, where an adapter
        is needed and none was loaded, and where the engine is closed or its process is gone.
        """
        version, session = self._find_version(request.adapter_version), request.session
        if session not in self._sessions:
            raise EngineError(f"session {session!r} is not open")
        if self._sessions[session] or not len(request.prompt_ids):
            raise EngineError(f"session {session!r} has a request under way, or no prompt")
        limit, reason = limit_turn(request, self._settings.max_context_tokens)
        if limit == 0:
            empty = np.empty(0, np.int64), np.empty(0, np.float32)
            return Completion(*empty, reason, version)
        ticket, slot = f"turn-{next(_TICKETS)}", self._served[version]
        sampling = self._process.sample(request, limit, self._stops, slot, f"v{version}", ticket)
        future = self._process.submit(sampling)
        self._sessions[session] = under_way = _Asked(future, version, ticket)
        try:
            ids, logprobs, is_interrupted = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
            raise EngineError(self._fault or f"session {session!r} was closed") from None
        finally:
            if self._sessions.get(session) is under_way:
                self._sessions[session] = None
        if is_interrupted:
            reason = StopReason.INTERRUPTED
        elif len(ids) and int(ids[-1]) in self._stops:
            reason = StopReason.STOP_TOKEN
        return Completion(ids, logprobs, reason, version)

    async def score(self, sequences: Sequence[Ids]) -> list[Floats]:
        """Returns log-probabilities (T - 1,), computed anew. Raises: EngineError, as `generate`."""
        slot = self._served[self._find_version(None)]
        return await asyncio.wrap_future(self._process.submit(self._process.score(sequences, slot)))

    def load_adapter(self, adapter: AdapterVersion) -> AdapterAck:
        """Serves an adapter in the place of the oldest one, and answers what the worker has read.

        Raises: EngineError where it does not fit (then the place stays empty until another one is
        loaded), or requests of the oldest one are under way.
        """
        self._check_alive()
        for version in list(self._served)[: len(self._served) + 1 - self.num_versions]:
            if any(asked and asked.version == version for asked in list(self._sessions.values())):
                raise EngineError("an adapter cannot be loaded while requests are under way")
            del self._served[version]
        return self._process.submit(self._load(adapter)).result()

    def interrupt(self) -> None:
        """Has all of its requests under way answered with the tokens that they have by then."""
        tickets = [asked.ticket for asked in list(self._sessions.values()) if asked]
        if not self._fault:  # else they fail by themselves
            self._process.submit(self._process.interrupt(tickets))

    def sleep(self) -> None:
        """Has vLLM give its cache back, and a GPU's weights; see `VllmProcess.sleep`.

        Raises: EngineError where requests are under way.
        """
        self._check_alive()
        self._process.submit(self._process.sleep()).result()

    def close(self) -> None:
        """Ends the process that it owns; of another one it frees the slots. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._owns_process:
            self._process.close()
        elif not self._process.fault:
            self.update_sessions(closed=list(self._sessions))
            self._process.submit(self._process.empty_slots(self._slots)).result()

    @property
    def _fault(self) -> str | None:
        return self._process.fault or ("the engine is closed" if self._is_closed else None)

    def _check_alive(self) -> None:
        if self._fault:
            raise EngineError(self._fault)

    def _find_version(self, wanted: int | None) -> int:
        self._check_alive()
        if not self._served:
            raise EngineError("no adapter was loaded, and the base alone is not to be served")
        version = next(reversed(self._served)) if wanted is None else wanted
        if version not in self._served:
            raise EngineError(f"adapter {version} is not served, but {list(self._served)}")
        return version

    async def _load(self, adapter: AdapterVersion) -> AdapterAck:
        is_fused = self._settings.serving == "fused"
        if not is_fused and (lora_rank(adapter) or 1 << 30) > self._settings.max_rank:
            raise EngineError(
                f"{adapter.name} has rank {lora_rank(adapter)}, and LoRA slots are for adapters up "
                f"to rank {self._settings.max_rank}"
            )
        with TemporaryDirectory(prefix="agentpeft-adapter-") as name:
            folder = Path(name)
            write_adapter(adapter, folder)
            answer = await self._process.receive(folder, is_fused)
            slot = None if is_fused else await self._fill_slot(adapter.name, folder)
        # Of several versions, or engines, names tell the keys and values apart
        is_alone = not self._served and self._owns_process
        if is_alone and not await self._process.forget_prompts():
            raise EngineError(f"{adapter.name}: vLLM kept keys and values of older weights")
        self.served_effect = answer.pop("served_effect")
        ack = AdapterAck(**answer)
        self._served.pop(ack.version, None)
        self._served[ack.version] = slot
        return ack

    async def _fill_slot(self, name: str, folder: Path) -> Slot:
        """Fills a slot in the place of those that are served no more."""
        in_use = [slot for slot in self._served.values() if slot]
        emptied = [slot for slot in self._slots if slot not in in_use]
        self._slots = in_use
        new = await self._process.fill_slot(name, folder, emptied)
        if self._is_closed:  # meanwhile, with the slots that it had then
            await self._process.empty_slots([new])
            raise EngineError("the engine is closed")
        self._slots = [*in_use, new]
        return new
