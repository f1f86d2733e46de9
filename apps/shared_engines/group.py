"""Shared engines as named Ray actors: who starts them, and how an env runner uses one.

`SharedEngines` starts hosts under a name and ends them. `RemoteEngine` is an env runner's end of
one: an engine like any other, whose calls go to the host.
"""

import asyncio
import logging
import math
import random
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import ray
import torch
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util import list_named_actors
from transformers import AutoConfig

from agentpeft.apps.shared_engines.host import (
    BEAT_S,
    LEASE_S,
    EngineHost,
    HostState,
    NoSlotError,
    Wish,
    base_name,
)
from agentpeft.envs import SettingsError
from agentpeft.policies.engines.protocol import Engine
from agentpeft.policies.errors import EngineError, EngineLostError, PlacementError
from agentpeft.policies.messages import (
    AdapterAck,
    AdapterVersion,
    Completion,
    Floats,
    GenerationRequest,
    Ids,
)
from agentpeft.policies.models.base_files import find_base
from agentpeft.policies.models.load import choose_dtype
from agentpeft.policies.rollout.chat import ChatFormat, open_chat
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers.ray_actors import process_variables

logger = logging.getLogger(__name__)
_NAMESPACE = "agentpeft-engines-"
_MAX_CALLS = 10_000
_CLOSE_S = 5.0
_PAUSE_S = 1.0


class SharedEngines:
    """Engines that runs of a cluster share by a name; a context manager that ends them.

    They end with this process too. One that dies is begun anew by Ray, without the adapters that it
    had: the runners that used it are replaced by their runs, and deliver theirs again.
    """

    def __init__(self, settings: Settings, name: str, num_slots: int) -> None:
        """Starts `env_runners.num_env_runners` engines of `num_slots` LoRA slots each.

        Raises: SettingsError where the name is taken or vLLM does not start, PlacementError.
        """
        own, limits = settings.env_runners, settings.fault_tolerance
        if find_hosts(name):
            raise SettingsError(f"there are engines of the name {name!r} in this cluster already")
        settings = settings.model_copy(
            update={"env_runners": own.model_copy(update={"serving": "native"})}
        )
        options: dict[str, Any] = {
            "num_cpus": settings.num_cpus_per_process,
            "num_gpus": own.num_gpus_per_env_runner,
            "namespace": _NAMESPACE + name,
            "max_concurrency": _MAX_CALLS,
            "max_restarts": -1,
            "runtime_env": {"env_vars": process_variables(settings.threads_per_env_runner)},
        }
        host, numbers = ray.remote(EngineHost), range(max(own.num_env_runners, 1))
        self._hosts: list[Any] = [
            host.options(name=f"engine-{number}", **options).remote(settings, num_slots)
            for number in numbers
        ]
        timeout_s = limits.placement_timeout_s + limits.env_runner_restore_timeout_s
        try:
            _ask([each.start.remote() for each in self._hosts], timeout_s)
        except EngineError as error:
            self.close()
            raise PlacementError(
                f"{len(numbers)} engines of {settings.num_cpus_per_process:g} CPUs and "
                f"{own.num_gpus_per_env_runner:g} GPUs did not start: {error}"
            ) from None
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def look(self) -> dict[int, HostState]:
        """Returns the engines' states by their numbers, of those that answer soon."""
        return _look_at(self._hosts)

    def close(self) -> None:
        """Ends the engines; idempotent."""
        hosts, self._hosts = self._hosts, []
        for host in hosts:
            ray.kill(host)


def find_hosts(name: str) -> list[Any]:
    """Returns the shared engines of a name in this cluster."""
    namespace = _NAMESPACE + name
    named = [each for each in list_named_actors(True) if each["namespace"] == namespace]
    found = []
    for each in named:
        try:
            found.append(ray.get_actor(each["name"], namespace))
        except ValueError:  # it has ended since
            logger.warning("shared engine %s of %s has just ended", each["name"], name)
    return found


def join_group(settings: Settings, name: str) -> tuple[ChatFormat, Engine]:
    """Returns how the settings' model reads and writes, and an engine that other runs use too.

    Raises: as `start_shared`.
    """
    from agentpeft.policies.engines.vllm.start import read_stop_tokens

    own = settings.env_runners
    if own.num_env_runners == 0:
        raise SettingsError(
            f"env_runners.shared_engines: {name!r} is in a Ray cluster, and "
            "env_runners.num_env_runners is 0"
        )
    folder, tokenizer = find_base(settings)
    shape = AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config()
    dtype = choose_dtype(settings.model, torch.device("cpu"))
    model_limit = shape.max_position_embeddings
    chat = open_chat(tokenizer, settings, read_stop_tokens(folder), model_limit)
    wish = Wish(
        run=settings.experiment,
        base=base_name(folder, settings),
        dtype=str(dtype).removeprefix("torch."),
        rank=settings.lora.rank,
        num_versions=settings.num_served_versions,
        max_context_tokens=own.limit_context(model_limit),
        stop_token_ids=tuple(chat.stop_token_ids),
    )
    start_s = settings.fault_tolerance.env_runner_restore_timeout_s
    return chat, RemoteEngine(name, wish, start_s, own.episode_timeout_s)


class RemoteEngine(Engine):
    """An engine in another process, which serves other runs' adapters too."""

    def __init__(self, name: str, wish: Wish, start_s: float, answer_s: float) -> None:
        """Takes the engine with most free slots; waits for slots of runners that are gone.

        `start_s`: how long an engine may take to be there, as where Ray begins it anew; `answer_s`:
        to load an adapter. Raises: SettingsError, PlacementError, EngineError.
        """
        self._name = f"{wish.run}-{uuid.uuid4().hex}"
        self.num_versions, self.served_effect = wish.num_versions, math.nan
        self._start_s, self._answer_s = start_s, answer_s
        self._host = self._attach(name, wish)
        self._sessions: dict[str, str] = {}
        """Open ones, by their names here: their names there, which are never used again."""
        self._num_opened = 0
        self._closing: list[Any] = []
        self._is_closed = threading.Event()
        threading.Thread(target=self._beat, name="shared engine", daemon=True).start()

    def update_sessions(self, opened: Sequence[str] = (), closed: Sequence[str] = ()) -> None:
        """Announces and forgets sessions; what a closed one asked for is cancelled.

        Ray may carry out calls in another order, so the host opens a session at its first request.
        """
        ended = [self._sessions.pop(name) for name in closed if name in self._sessions]
        if ended:
            self._close_there(ended)
        for name in opened:
            self._num_opened += 1
            self._sessions.setdefault(name, f"{name}#{self._num_opened}")

    async def generate(self, request: GenerationRequest) -> Completion:
        """Samples one turn. Raises: EngineError."""
        there = self._sessions.get(request.session)
        if there is None:
            raise EngineError(f"session {request.session!r} is not open")
        asked = self._host.generate.remote(self._name, replace(request, session=there))
        try:
            completion: Completion = await asked
        except asyncio.CancelledError:  # the host may hear of the session's end first
            asked.future().add_done_callback(lambda _: self._close_there([there]))
            raise
        except RayError as error:
            raise _translate(error) from None
        if self._sessions.get(request.session) != there:
            self._close_there([there])
            raise EngineError(f"session {request.session!r} was closed")
        return completion

    def load_adapter(self, adapter: AdapterVersion) -> AdapterAck:
        """Serves an adapter in the place of this run's oldest one. Raises: EngineError."""
        closing, self._closing = self._closing, []
        _ask(closing, self._answer_s)  # or the oldest one may have a request under way there
        asked = self._host.load_adapter.remote(self._name, adapter)
        ((ack, self.served_effect),) = _ask([asked], self._answer_s)
        received: AdapterAck = ack
        return received

    async def score(self, sequences: Sequence[Ids]) -> list[Floats]:
        """Returns log-probabilities (T - 1,), computed anew. Raises: EngineError."""
        try:
            scores: list[Floats] = await self._host.score.remote(self._name, list(sequences))
        except RayError as error:
            raise _translate(error) from None
        return scores

    def close(self) -> None:
        """Gives the slots back; idempotent."""
        if self._is_closed.is_set():
            return
        self._is_closed.set()
        try:
            _ask([self._host.detach.remote(self._name)], _CLOSE_S)
        except EngineError as error:
            logger.warning("a shared engine was not told of a runner's end: %s", error)

    def _attach(self, name: str, wish: Wish) -> Any:
        setting, begun_s = f"env_runners.shared_engines: {name!r}", time.monotonic()
        while True:
            hosts = find_hosts(name)
            if not hosts:
                raise SettingsError(
                    f"{setting}: there are none in this cluster (agentpeft engines --name {name} "
                    "starts them)"
                )
            states = _look_at(hosts)
            full: NoSlotError | None = None
            silent = EngineError(f"{setting}: none of {len(hosts)} answers")
            random.shuffle(order := list(states))
            for number in sorted(order, key=lambda each: -states[each].num_free):
                try:
                    _ask([hosts[number].attach.remote(self._name, wish)], self._start_s)
                except NoSlotError as error:
                    full = error
                except EngineError as error:  # it is begun anew
                    silent = error
                else:
                    return hosts[number]
            waited_s = time.monotonic() - begun_s
            if full is not None and waited_s > LEASE_S + 2 * BEAT_S:
                more = "start them with more --slots, or begin fewer runs at once"
                raise PlacementError(f"{setting}: {full}; {more}")
            if full is None and waited_s > self._start_s:
                raise silent
            time.sleep(_PAUSE_S)

    def _close_there(self, sessions: Sequence[str]) -> None:
        before, under_way = self._closing, list[Any]()
        if before:
            _, under_way = ray.wait(before, num_returns=len(before), timeout=0)
        closing = self._host.close_sessions.remote(self._name, list(sessions))
        self._closing = [*under_way, closing]

    def _beat(self) -> None:
        while not self._is_closed.wait(BEAT_S):
            try:
                _ask([self._host.keep.remote(self._name)], BEAT_S)
            except EngineError as error:  # whoever asks next hears of it
                logger.debug("%s", error)


def _look_at(hosts: Sequence[Any]) -> dict[int, HostState]:
    """Returns the states by number, of those that answer soon."""
    states = {}
    for number, host in enumerate(hosts):
        try:
            (states[number],) = _ask([host.look.remote()], _CLOSE_S)
        except EngineError as error:
            logger.warning("shared engine %d: %s", number, error)
    return states


def _ask(refs: Sequence[Any], timeout_s: float) -> list[Any]:
    """Returns what hosts answer. Raises: what they raise, EngineError."""
    try:
        return list(ray.get(list(refs), timeout=timeout_s))
    except GetTimeoutError:
        raise EngineError(f"a shared engine does not answer within {timeout_s:g} s") from None
    except RayError as error:
        raise _translate(error) from None


def _translate(error: RayError) -> Exception:
    if isinstance(error, RayTaskError) and not isinstance(error.cause, RayError):
        cause: Exception = error.cause
        return cause
    return EngineLostError(f"the shared engine is gone: {' '.join(str(error).split()):.300}")
