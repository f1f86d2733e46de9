"""`TransformersEngine`: continuous batching over a Hugging Face model, in a thread of its own.

transformers has a `ContinuousBatchingManager` of its own, made for paged attention on GPUs. On a
CPU it samples 0.06 times as many tokens a second from the built-in model (transformers 5.19,
`benchmarks/alternatives.py batching`), and it neither samples from given random numbers nor keeps
keys and values from turn to turn.
"""

import asyncio
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from transformers import PreTrainedModel

from agentpeft.policies.delivery.version import ack_of
from agentpeft.policies.engines.fusing import ServedEffect, merged_state
from agentpeft.policies.engines.protocol import Engine, limit_turn
from agentpeft.policies.engines.transformers.batching import NO_IDS, Batch, DecodingJob, Ended, Row
from agentpeft.policies.engines.transformers.slots import prepare_attention
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
from agentpeft.policies.models.few_rows import use_few_rows
from agentpeft.policies.models.load import choose_serving
from agentpeft.policies.models.lora.attach_lora import attach_lora
from agentpeft.policies.models.policy_base import PolicyBase
from agentpeft.policies.models.scoring import score_sequences
from agentpeft.policies.process_upkeep import release_threads
from agentpeft.policies.rollout.chat import ChatFormat
from agentpeft.policies.settings.config import Settings

QUIET_S = 0.0005
"""An idle engine begins when no request has come for so long."""
IDLE_S = 0.05
"""An engine without work for so long gives its threads back."""
MAX_STEPS_WAITED = 4
"""For how many steps a few requests wait for others to be prefilled with."""
State = Mapping[str, torch.Tensor]
Fuse = Callable[[State, AdapterVersion], tuple[dict[str, torch.Tensor], ServedEffect]]


@dataclass(frozen=True)
class EngineSettings:
    """How an engine serves.

    `max_concurrent`: requests decoded together; others wait. `max_context_tokens` None: the model's
    limit. `needs_adapter`: without one nothing is served. `deterministic`: a batch begins when
    every open session has asked, and serves them in order of their names. `adapters`: those of a
    PEFT model that are served at once; a request's `adapter_version` is the number of one of them.
    """

    max_concurrent: int = 256
    max_context_tokens: int | None = None
    needs_adapter: bool = True
    deterministic: bool = False
    adapters: tuple[str, ...] = ()


class TransformersEngine(Engine):
    """Samples with keys and values cached by session, and the adapter fused into the weights.

    The model belongs to the engine from then on. Its generation_config is not used.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        stop_token_ids: Iterable[int],
        settings: EngineSettings = EngineSettings(),
        fuse: Fuse = merged_state,
    ) -> None:
        """`fuse` maps the base's weights and an adapter to those that it changes, and their effect.

        Raises: SettingsError where the model's attention does not fit.
        """
        prepare_attention(model)
        use_few_rows(model)
        model.train(False)
        self._model = model
        self._settings = settings
        self._stop_token_ids = frozenset(stop_token_ids)
        limit = int(model.config.get_text_config().max_position_embeddings)
        self._max_context_tokens = min(settings.max_context_tokens or limit, limit)
        most = settings.max_concurrent
        self._batch = Batch(model, most, self._max_context_tokens, in_waves=settings.deterministic)
        self._fuse = fuse
        self._pristine: dict[str, torch.Tensor] = {}
        self.served_effect = math.nan
        self._version = None if settings.needs_adapter else 0
        self._rows: dict[str, Row] = {}
        self._jobs: dict[str, DecodingJob] = {}
        """By session, until answered; `_pending` and `_wave` are those that have not begun."""
        self._pending: dict[str, DecodingJob] = {}
        self._wave: list[DecodingJob] = []
        self._dropped: list[tuple[Row, bool]] = []
        self._steps_waited = 0
        self._is_interrupted = False
        self._is_idle = False
        self._fault: str | None = None
        self._wake = threading.Condition()
        release_threads()  # of the thread that has loaded the model; from here on another computes
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._thread.start()

    def update_sessions(self, opened: Sequence[str] = (), closed: Sequence[str] = ()) -> None:
        """Announces and forgets sessions; what a closed one asked for fails."""
        with self._wake:
            for session in closed:
                if row := self._rows.pop(session, None):
                    self._drop(row, is_closed=True)
            self._rows.update({name: Row(name) for name in opened if name not in self._rows})
            self._wake.notify_all()

    async def generate(self, request: GenerationRequest) -> Completion:
        """Samples one turn.

        Raises: EngineError where the session is not open or has asked already, where no adapter was
        loaded or it is none of several, and where the engine is closed or failed.
        """
        with self._wake:
            job = self._make_job(request)
            if len(job.uniforms) == 0:
                return self._complete(job, NO_IDS, job.uniforms)
            self._jobs[request.session] = self._pending[request.session] = job
            if len(self._pending) == 1 or self._has_all():
                self._wake.notify_all()
        try:
            return await job.future
        finally:
            if job.future.cancelled():
                with self._wake:
                    self._drop(job.row, is_closed=False)

    def load_adapter(self, adapter: AdapterVersion) -> AdapterAck:
        """Fuses an adapter into the base's weights, and drops all keys and values.

        Raises: EngineError where it does not fit, or requests are under way.
        """
        with self._wake:
            self._await_idle(is_loading=True)
            self._replace_weights(adapter)
            self._batch.clear()
            self._version = adapter.version
            release_threads()
            return ack_of(adapter)

    async def score(self, sequences: Sequence[Ids]) -> list[Floats]:
        """Returns log-probabilities (T - 1,). Raises: EngineError, as `generate` does."""
        with self._wake:
            self._await_idle()
            size = self._model.config.get_text_config().vocab_size
            scores = score_sequences(self._model, size, sequences)
            release_threads()
            return scores

    def interrupt(self) -> None:
        """Has all requests under way answered with the tokens that they have by then."""
        with self._wake:
            self._is_interrupted = bool(self._jobs)
            self._wake.notify_all()

    def sleep(self) -> None:
        """Gives the memory of keys and values back. Raises: EngineError, as `load_adapter`."""
        with self._wake:
            self._await_idle(is_loading=True)
            self._batch.free()

    def close(self) -> None:
        """Ends the thread; requests under way fail."""
        with self._wake:
            self._fault = self._fault or "the engine is closed"
            self._wake.notify_all()
        self._thread.join()
        self._batch.free()

    def _make_job(self, request: GenerationRequest) -> DecodingJob:
        """Returns a request's job, whose tokens follow from its seed. Raises: EngineError."""
        self._check_alive()
        row, prompt_ids = self._rows.get(request.session), request.prompt_ids
        if row is None or request.session in self._jobs or len(prompt_ids) == 0:
            reason = "is not open" if row is None else "has a request under way, or no prompt"
            raise EngineError(f"session {request.session!r} {reason}")
        names, number = self._settings.adapters, request.adapter_version
        if names and (number is None or not 0 <= number < len(names)):
            raise EngineError(f"adapter {number} is not served, but 0 to {len(names) - 1}")
        limit, end = limit_turn(request, self._max_context_tokens)
        return DecodingJob(
            row=row,
            adapter=names[number] if names and number is not None else "",
            prompt_ids=prompt_ids,
            uniforms=np.random.default_rng(request.seed).random(limit, np.float32),
            temperature=request.temperature,
            prefix=request.prefix,
            stop_reason=end,
            future=asyncio.get_running_loop().create_future(),
        )

    def _check_alive(self, is_loading: bool = False) -> None:
        if self._fault or (self._version is None and not is_loading):
            none = "no adapter was loaded, and the base alone is not to be served"
            raise EngineError(self._fault or none)

    def _await_idle(self, is_loading: bool = False) -> None:
        if self._jobs:
            raise EngineError("weights are neither loaded nor scored while requests are under way")
        self._wake.wait_for(lambda: self._fault or (self._is_idle and not self._dropped))
        self._check_alive(is_loading)

    def _replace_weights(self, adapter: AdapterVersion) -> None:
        """Has the model compute with new weights; others may share the base's, which stay."""
        merged, effect = self._fuse({**self._model.state_dict(), **self._pristine}, adapter)
        parameters = dict(self._model.named_parameters(remove_duplicate=False))
        for name in merged:
            self._pristine.setdefault(name, parameters[name].data)
        for name, pristine in self._pristine.items():
            parameters[name].data = merged.get(name, pristine)
        self.served_effect = effect.share

    def _drop(self, row: Row, is_closed: bool) -> None:
        """Forgets what a row asked for; the thread does the rest."""
        job = self._jobs.pop(row.session, None)
        was_pending = self._pending.pop(row.session, None) is not None
        if is_closed or not was_pending:  # else the row's next job would be ended in its place
            self._dropped.append((row, is_closed))
        if job is not None:
            self._wave = [waiting for waiting in self._wave if waiting is not job]
            _settle({job: EngineError(f"session {row.session!r} was closed")})
        self._wake.notify_all()

    def _has_all(self) -> bool:
        return len(self._pending) == len(self._rows)

    @torch.inference_mode()
    def _work(self) -> None:
        try:
            while self._fault is None:
                self._serve()
        except EngineError as error:
            self._fault = str(error)
        except BaseException as error:
            self._fault = f"the engine failed: {type(error).__name__}: {error}"
            raise
        finally:
            with self._wake:
                _settle({job: EngineError(self._fault) for job in self._jobs.values()})
                self._jobs.clear()
                self._wake.notify_all()

    def _serve(self) -> None:
        """Waits for work, takes new requests in, samples a token for each of those under way."""
        batch = self._batch
        with self._wake:
            self._is_idle = batch.num_active == 0
            self._wake.notify_all()
            if not self._wake.wait_for(self._has_work, IDLE_S):
                release_threads()  # a learner in this process may compute meanwhile
                self._wake.wait_for(self._has_work)
            self._is_idle = False
            for row, is_closed in self._dropped:
                (batch.release if is_closed else batch.cancel)(row)
            self._dropped.clear()
            if self._is_interrupted:
                self._interrupt()
            jobs = self._take(self._settings.max_concurrent - batch.num_active)
        if jobs:
            batch.admit(jobs)
        if batch.num_active:
            self._deliver(batch.step(self._stop_token_ids))

    def _has_work(self) -> bool:
        may_begin = self._pending and (not self._settings.deterministic or self._has_all())
        is_asked = self._dropped or self._is_interrupted or self._wave or may_begin
        return bool(self._fault or is_asked or self._batch.num_active)

    def _interrupt(self) -> None:
        """Answers all requests, those that have not begun without a token."""
        self._is_interrupted = False
        unbegun = [*self._pending.values(), *self._wave]
        self._pending.clear()
        self._wave.clear()
        ended = [*self._batch.interrupt(), *((job, NO_IDS, job.uniforms[:0]) for job in unbegun)]
        self._deliver(ended, is_interrupted=True)

    def _take(self, room: int) -> list[DecodingJob]:
        """Returns the jobs that begin now, at most `room`."""
        if self._settings.deterministic:
            if not self._wave and self._has_all():
                self._wave = [self._pending.pop(session) for session in sorted(self._pending)]
            room = 0 if self._batch.num_active else room
            taken, self._wave = self._wave[:room], self._wave[room:]
            return taken
        if self._should_wait(room):
            return []
        return [self._pending.pop(session) for session in list(self._pending)[:room]]

    def _should_wait(self, room: int) -> bool:
        """Whether few requests wait for more: they are run through the model together."""
        num_pending, num_active = 0, self._batch.num_active
        while not num_active and len(self._pending) > num_pending:
            num_pending = len(self._pending)
            self._wake.wait_for(self._has_all, QUIET_S)
        is_few = min(len(self._pending), room) * 8 < num_active
        self._steps_waited = (self._steps_waited + 1) % MAX_STEPS_WAITED if is_few else 0
        return self._steps_waited > 0

    def _deliver(self, ended: list[Ended], *, is_interrupted: bool = False) -> None:
        results: dict[DecodingJob, Completion | EngineError] = {}
        with self._wake:
            for job, ids, logprobs in ended:
                if self._jobs.get(job.row.session) is job:
                    del self._jobs[job.row.session]
                    results[job] = self._complete(job, ids, logprobs, is_interrupted)
            self._is_interrupted &= bool(self._jobs)
        _settle(results)

    def _complete(
        self, job: DecodingJob, ids: Ids, logprobs: Floats, is_interrupted: bool = False
    ) -> Completion:
        is_stopped = len(ids) > 0 and int(ids[-1]) in self._stop_token_ids
        reason = StopReason.STOP_TOKEN if is_stopped else job.stop_reason
        reason = StopReason.INTERRUPTED if is_interrupted else reason
        return Completion(ids, logprobs, reason, self._version or 0)


def _settle(results: Mapping[DecodingJob, Completion | EngineError]) -> None:
    """Answers those who wait, with one call into each event loop."""
    for loop in {job.future.get_loop() for job in results}:
        if not loop.is_closed():
            loop.call_soon_threadsafe(_set_results, results, loop)


def _set_results(
    results: Mapping[DecodingJob, Completion | EngineError], loop: asyncio.AbstractEventLoop
) -> None:
    for job, result in results.items():
        if job.future.get_loop() is not loop or job.future.done():
            continue
        if isinstance(result, EngineError):
            job.future.set_exception(result)
        else:
            job.future.set_result(result)


def start_transformers(
    settings: Settings, base: PolicyBase, chat: ChatFormat
) -> TransformersEngine:
    """Returns an engine over `base`, which is its own from then on. Raises: SettingsError."""
    limits, fuse = settings.env_runners, merged_state
    if choose_serving(settings, base.model.dtype) == "native":
        from agentpeft.policies.engines.adapter_slots import slot_state

        fuse = partial(slot_state, scaling=attach_lora(base, settings.lora).scaling)
    engine_settings = EngineSettings(
        max_concurrent=limits.max_concurrent_episodes,
        max_context_tokens=limits.max_context_tokens,
        deterministic=settings.deterministic,
    )
    return TransformersEngine(base.model, chat.stop_token_ids, engine_settings, fuse)
