"""`TransformersEngine`: continuous batching over a Hugging Face model, in a thread of its own."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from agentpeft.policies.adapter_store import ack_of
from agentpeft.policies.engines.batching import NO_IDS, Batch, Job, Row, Sampled
from agentpeft.policies.engines.slots import check_attention
from agentpeft.policies.errors import EngineError
from agentpeft.policies.lora import merged_state
from agentpeft.policies.samples import (
    AdapterAck,
    AdapterVersion,
    Completion,
    GenerationRequest,
    StopReason,
)

QUIET_S = 0.0005
"""An idle engine begins when no request has come for so long."""
MAX_STEPS_WAITED = 4
"""For how many steps a few requests wait for others to be prefilled with."""
State = Mapping[str, torch.Tensor]
Fuse = Callable[[State, AdapterVersion], dict[str, torch.Tensor]]


@dataclass(frozen=True, eq=False)
class Ticket:
    """A request under way, who waits for it, and why it ends if not with a stop token."""

    job: Job
    future: asyncio.Future[Completion]
    stop_reason: StopReason


@dataclass(frozen=True)
class EngineSettings:
    """What an engine is to do.

    `max_concurrent`: requests decoded together; others wait. `max_context_tokens`: None is what
    the model was made for. `needs_adapter`: without one nothing is served. `deterministic`: a
    batch begins when every open session has asked, and serves them in order of their names.
    """

    max_concurrent: int = 256
    max_context_tokens: int | None = None
    needs_adapter: bool = True
    deterministic: bool = False


class TransformersEngine:
    """Samples with keys and values cached by session, and the adapter fused into the weights.

    The model belongs to the engine from then on. Sampling is the engine's own: of the model's
    generation_config nothing is used.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        stop_token_ids: Iterable[int],
        settings: EngineSettings = EngineSettings(),
        fuse: Fuse = merged_state,
    ) -> None:
        """`fuse` maps the base's weights and an adapter to the weights that it changes.

        Raises: SettingsError where the model's attention does not fit.
        """
        check_attention(model)
        model.train(False)
        self._model = model
        self._settings = settings
        self._stop_token_ids = frozenset(stop_token_ids)
        self._batch = Batch(model, self._stop_token_ids, not settings.deterministic)
        limit = int(model.config.get_text_config().max_position_embeddings)
        self._max_context_tokens = min(settings.max_context_tokens or limit, limit)
        self._fuse = fuse
        self._pristine: dict[str, torch.Tensor] = {}
        self._version = None if settings.needs_adapter else 0
        self._rows: dict[str, Row] = {}
        self._tickets: dict[str, Ticket] = {}
        self._pending: dict[str, Ticket] = {}
        self._wave: list[Ticket] = []
        self._dropped: list[tuple[Row, bool]] = []
        self._steps_waited = 0
        self._fault: str | None = None
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._thread.start()

    def update_sessions(self, opened: Sequence[str] = (), closed: Sequence[str] = ()) -> None:
        """Announces and forgets sessions; what a closed one asked for fails."""
        with self._wake:
            for session in closed:
                row = self._rows.pop(session, None)
                if row is not None:
                    self._drop(row, is_closed=True)
            self._rows.update({name: Row(name) for name in opened if name not in self._rows})
            self._wake.notify()

    async def generate(self, request: GenerationRequest) -> Completion:
        """Samples one turn.

        Raises: EngineError where the session is not open or has asked already, where an adapter
        is needed and none was loaded, and where the engine is closed or failed.
        """
        loop = asyncio.get_running_loop()
        with self._wake:
            row = self._check(request)
            room = self._max_context_tokens - len(request.prompt_ids)
            limit, reason = request.max_new_tokens, StopReason.MAX_NEW_TOKENS
            if room < limit:
                limit, reason = max(room, 0), StopReason.CONTEXT_FULL
            if limit == 0:
                return Completion(NO_IDS, np.empty(0, np.float32), reason, self._version or 0)
            ticket = Ticket(_make_job(request, row, limit), loop.create_future(), reason)
            self._tickets[request.session] = self._pending[request.session] = ticket
            if len(self._pending) == 1 or self._has_all():
                self._wake.notify()
        try:
            return await ticket.future
        finally:
            if ticket.future.cancelled():
                with self._wake:
                    self._drop(row, is_closed=False)

    def load_adapter(self, adapter: AdapterVersion) -> AdapterAck:
        """Fuses an adapter into the base's weights, and drops all keys and values.

        Raises: EngineError where it does not fit, or requests are under way.
        """
        with self._wake:
            self._check_alive()
            if self._tickets:
                raise EngineError("an adapter cannot be loaded while requests are under way")
            self._replace_weights(adapter)
            self._batch.clear()
            self._version = adapter.version
            return ack_of(adapter)

    def close(self) -> None:
        """Ends the thread; requests under way fail."""
        with self._wake:
            self._fault = self._fault or "the engine is closed"
            self._wake.notify()
        self._thread.join()
        self._batch.clear()

    def _check(self, request: GenerationRequest) -> Row:
        self._check_alive()
        row = self._rows.get(request.session)
        if self._version is None:
            raise EngineError("no adapter was loaded, and the base alone is not to be served")
        if row is None:
            raise EngineError(f"session {request.session!r} is not open")
        if request.session in self._tickets:
            raise EngineError(f"session {request.session!r} has a request under way")
        if len(request.prompt_ids) == 0:
            raise EngineError(f"session {request.session!r} has an empty prompt")
        return row

    def _check_alive(self) -> None:
        if self._fault:
            raise EngineError(self._fault)

    def _replace_weights(self, adapter: AdapterVersion) -> None:
        state = self._model.state_dict()
        merged = self._fuse({**state, **self._pristine}, adapter)
        with torch.no_grad():
            for name in merged.keys() - self._pristine.keys():
                self._pristine[name] = state[name].clone()
            for name, pristine in self._pristine.items():
                state[name].copy_(merged.get(name, pristine))

    def _drop(self, row: Row, is_closed: bool) -> None:
        """Forgets what a row asked for; the thread does the rest."""
        ticket = self._tickets.pop(row.session, None)
        self._pending.pop(row.session, None)
        self._dropped.append((row, is_closed))
        if ticket is not None:
            self._wave = [waiting for waiting in self._wave if waiting is not ticket]
            _settle([(ticket, EngineError(f"session {row.session!r} was closed"))])

    def _has_all(self) -> bool:
        return len(self._pending) == len(self._rows)

    @torch.inference_mode()
    def _work(self) -> None:
        try:
            while self._fault is None:
                self._serve()
        except BaseException as error:
            self._fault = f"the engine failed: {type(error).__name__}: {error}"
            raise
        finally:
            with self._wake:
                failure = EngineError(self._fault or "the engine ended")
                _settle([(ticket, failure) for ticket in self._tickets.values()])
                self._tickets.clear()

    def _serve(self) -> None:
        """Waits for work, takes new requests in, samples a token for each of those under way."""
        with self._wake:
            self._wake.wait_for(self._has_work)
            for row, is_closed in self._dropped:
                self._batch.release(row) if is_closed else self._batch.cancel(row)
            self._dropped.clear()
            jobs = self._take()
        if jobs:
            self._deliver(self._batch.admit(jobs))
        if self._batch.num_active:
            self._deliver(self._batch.step())

    def _has_work(self) -> bool:
        if self._fault or self._dropped or self._wave or self._batch.num_active:
            return True
        return self._has_all() if self._settings.deterministic else bool(self._pending)

    def _take(self) -> list[Job]:
        """Returns the jobs that begin now."""
        room = self._settings.max_concurrent - self._batch.num_active
        if self._settings.deterministic:
            if self._batch.num_active:
                return []
            if not self._wave and self._has_all():
                self._wave = [self._pending[session] for session in sorted(self._pending)]
                self._pending.clear()
            taken, self._wave = self._wave[:room], self._wave[room:]
            return [ticket.job for ticket in taken]
        self._wait_for_others()
        if not self._pending or room <= 0 or self._is_too_early():
            return []
        return [self._pending.pop(session).job for session in list(self._pending)[:room]]

    def _wait_for_others(self) -> None:
        """Lets an idle engine wait while requests keep coming."""
        while self._pending and not self._batch.num_active:
            num_pending = len(self._pending)
            if self._wake.wait_for(self._has_all, QUIET_S) or len(self._pending) == num_pending:
                return

    def _is_too_early(self) -> bool:
        """Whether a few requests should wait for others, to be run through the model together."""
        is_few = len(self._pending) * 8 < self._batch.num_active
        self._steps_waited = self._steps_waited + 1 if is_few else 0
        if self._steps_waited > MAX_STEPS_WAITED:
            self._steps_waited = 0
        return self._steps_waited > 0

    def _deliver(self, ended: list[Sampled]) -> None:
        if not ended:
            return
        results: list[tuple[Ticket, Completion | EngineError]] = []
        with self._wake:
            for sampled in ended:
                ticket = self._tickets.get(sampled.job.row.session)
                if ticket is not None and ticket.job is sampled.job:
                    del self._tickets[sampled.job.row.session]
                    results.append((ticket, self._complete(ticket, sampled)))
        _settle(results)

    def _complete(self, ticket: Ticket, sampled: Sampled) -> Completion | EngineError:
        if not np.isfinite(sampled.logprobs).all():
            return EngineError("the model's log-probabilities are not finite")
        is_stopped = int(sampled.token_ids[-1]) in self._stop_token_ids
        reason = StopReason.STOP_TOKEN if is_stopped else ticket.stop_reason
        return Completion(sampled.token_ids, sampled.logprobs, reason, self._version or 0)


def _make_job(request: GenerationRequest, row: Row, limit: int) -> Job:
    uniforms = np.random.default_rng(request.seed).random(limit, np.float32)
    return Job(row, request.prompt_ids, uniforms, request.temperature, request.prefix)


def _settle(results: Sequence[tuple[Ticket, Completion | EngineError]]) -> None:
    """Ends the waiting of tickets, with one call into each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Ticket, Completion | EngineError]]] = {}
    for ticket, result in results:
        by_loop.setdefault(ticket.future.get_loop(), []).append((ticket, result))
    for loop, own in by_loop.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_set_results, own)


def _set_results(results: Sequence[tuple[Ticket, Completion | EngineError]]) -> None:
    for ticket, result in results:
        if ticket.future.done():
            continue
        if isinstance(result, EngineError):
            ticket.future.set_exception(result)
        else:
            ticket.future.set_result(result)
