"""`VllmEngine`: vLLM's `AsyncLLM` behind the engines' protocol (the only door to vllm).

vLLM's own part runs in one process beside this one, on CPUs too: a second one for its worker would
share memory with it by polling, on cores that the model needs. That process ends with this one.
Over several GPUs it has a process for each besides, which ends with it.
"""

import asyncio
import math
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
from vllm import SamplingParams, TokensPrompt
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.lora.request import LoRARequest
from vllm.outputs import RequestOutput
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from agentpeft.envs.core.errors import SettingsError
from agentpeft.policies.engines.vllm.adapter_files import lora_rank, write_adapter
from agentpeft.policies.engines.vllm.cores import CoreClaim
from agentpeft.policies.engines.vllm.settings import VllmSettings
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

T = TypeVar("T")
_CLOSE_S = 5.0


class VllmEngine:
    """Serves many sessions at once, from an event loop in a thread of its own.

    What is kept of prompts is known by the adapter's version, and dropped with it. Fused weights
    are one version; a completion is of one in any case. Not deterministic: the tokens follow from
    their seeds, but rounding follows from what else is in the batch.
    """

    def __init__(
        self,
        folder: Path,
        stop_token_ids: Iterable[int],
        settings: VllmSettings,
        claim: CoreClaim,
    ) -> None:
        """Starts vLLM on a saved model. `claim` is closed with the engine.

        Raises: SettingsError where it does not start.
        """
        self._settings, self._stops, self._claim = settings, sorted(stop_token_ids), claim
        self.num_versions, self.served_effect = settings.num_adapters, math.nan
        self._served: dict[int, LoRARequest | None] = {} if settings.needs_adapter else {0: None}
        """By version, the newest last."""
        self._slots: list[LoRARequest] = []
        self._num_loaded = self._num_asked = 0
        self._sessions: dict[str, tuple[Future[Completion], int] | None] = {}
        """The request that each has under way, and its version."""
        self._fault: str | None = None
        is_on_gpu = settings.gpu_share > 0
        if current_platform.is_cpu() == is_on_gpu:
            build, where = ("CPUs", "a GPU") if is_on_gpu else ("GPUs", "none")
            raise SettingsError(
                f"the vllm that is installed is built for {build}, and "
                f"env_runners.num_gpus_per_env_runner asks for {where}"
            )
        try:
            self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**settings.engine_args(folder)))
        except (RuntimeError, ValueError, OSError) as error:
            reason = " ".join(str(error).split())
            raise SettingsError(
                f"vLLM does not start on {folder}: {reason:.400} (where memory is short: lower "
                "env_runners.kv_cache_gib or take fewer env runners)"
            ) from None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm", daemon=True)
        self._thread.start()

    def update_sessions(self, opened: Sequence[str] = (), closed: Sequence[str] = ()) -> None:
        """Announces and forgets sessions; what a closed one asked for is cancelled."""
        for session in closed:
            if under_way := self._sessions.pop(session, None):
                under_way[0].cancel()
        for session in opened:
            self._sessions.setdefault(session, None)

    async def generate(self, request: GenerationRequest) -> Completion:
        """Samples one turn.

        Raises: EngineError where the session is not open or has asked already, where an adapter
        is needed and none was loaded, and where the engine is closed or its process is gone.
        """
        version = self._check(request)
        room = self._settings.max_context_tokens - len(request.prompt_ids)
        limit, reason = request.max_new_tokens, StopReason.MAX_NEW_TOKENS
        if room < limit:
            limit, reason = max(room, 0), StopReason.CONTEXT_FULL
        if limit == 0:
            empty = np.empty(0, np.int64), np.empty(0, np.float32)
            return Completion(*empty, reason, version)
        asked = self._submit(self._sample(request, limit, reason, version))
        self._sessions[request.session] = under_way = asked, version
        try:
            return await asyncio.wrap_future(asked)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
            closed = f"session {request.session!r} was closed"
            raise EngineError(self._fault or closed) from None
        finally:
            if self._sessions.get(request.session) is under_way:
                self._sessions[request.session] = None

    async def score(self, sequences: Sequence[Ids]) -> list[Floats]:
        """Returns log-probabilities (T - 1,), computed anew. Raises: EngineError, as `generate`."""
        self._find_version(None)
        return await asyncio.wrap_future(self._submit(self._score_all(sequences)))

    def load_adapter(self, adapter: AdapterVersion) -> AdapterAck:
        """Serves an adapter in the place of the oldest one, and answers what the worker has read.

        Raises: EngineError where it does not fit (then the place stays empty until another one is
        loaded), or requests of the oldest one are under way.
        """
        self._check_alive()
        for version in list(self._served)[: len(self._served) + 1 - self.num_versions]:
            if any(asked and asked[1] == version for asked in list(self._sessions.values())):
                raise EngineError("an adapter cannot be loaded while requests are under way")
            del self._served[version]
        return self._submit(self._load(adapter)).result()

    def close(self) -> None:
        """Ends vLLM's process; requests under way fail."""
        if self._fault:
            return
        self._fault = "the engine is closed"
        self._submit(self._stop()).result()
        self._llm.shutdown(timeout=_CLOSE_S)
        del self._llm  # at the interpreter's end it would look for modules that are gone
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._claim.close()

    def _check(self, request: GenerationRequest) -> int:
        """Returns the version that is asked for. Raises: EngineError."""
        version = self._find_version(request.adapter_version)
        session = request.session
        if session not in self._sessions:
            raise EngineError(f"session {session!r} is not open")
        if self._sessions[session] or not len(request.prompt_ids):
            raise EngineError(f"session {session!r} has a request under way, or no prompt")
        return version

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

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def _sample(
        self, request: GenerationRequest, limit: int, reason: StopReason, version: int
    ) -> Completion:
        params = SamplingParams(
            temperature=request.temperature,
            seed=int(np.random.SeedSequence(request.seed).generate_state(1)[0]),
            max_tokens=limit,
            stop_token_ids=self._stops,
            ignore_eos=True,  # what stops is said above
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        (sampled,) = (await self._ask(request.prompt_ids, params, f"v{version}", version)).outputs
        ids = np.array(sampled.token_ids, np.int64)
        logprobs = np.array(sampled.logprobs.logprobs, np.float32)
        if len(logprobs) != len(ids) or not np.isfinite(logprobs).all():
            raise EngineError("the model's log-probabilities are not finite")
        if len(ids) and int(ids[-1]) in self._stops:
            reason = StopReason.STOP_TOKEN
        return Completion(ids, logprobs, reason, version)

    async def _score_all(self, sequences: Sequence[Ids]) -> list[Floats]:
        if self._settings.serving == "native" and not self._settings.gpu_share:
            # vLLM's LoRA kernels for CPUs fail at prompts' logits of several requests together
            return [await self._score(ids) for ids in sequences]
        return list(await asyncio.gather(*map(self._score, sequences)))

    async def _score(self, ids: Ids) -> Floats:
        params = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            prompt_logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        # Keys and values under a name of their own are nobody's older ones
        newest = self._find_version(None)
        output = await self._ask(ids, params, f"score-{self._num_asked}", newest)
        return np.array(output.prompt_logprobs.logprobs[: len(ids) - 1], np.float32)

    async def _ask(
        self, ids: Ids, params: SamplingParams, salt: str, version: int
    ) -> RequestOutput:
        """Returns vLLM's one output; `salt` names the prefixes that may be shared."""
        self._num_asked += 1
        prompt = TokensPrompt(prompt_token_ids=ids.tolist(), cache_salt=salt)
        lora = self._served[version]
        outputs = self._llm.generate(prompt, params, str(self._num_asked), lora_request=lora)
        try:
            (output,) = [output async for output in outputs]
        except (EngineDeadError, EngineGenerateError, ValueError) as error:
            raise EngineError(f"vLLM failed: {type(error).__name__}: {error}") from None
        return output

    async def _load(self, adapter: AdapterVersion) -> AdapterAck:
        is_fused = self._settings.serving == "fused"
        if not is_fused and (lora_rank(adapter) or 1 << 30) > self._settings.max_rank:
            raise EngineError(
                f"{adapter.name} has rank {lora_rank(adapter)}, and LoRA slots are for adapters up "
                f"to rank {self._settings.max_rank}"
            )
        with TemporaryDirectory(prefix="agentpeft-adapter-") as folder:
            write_adapter(adapter, Path(folder))
            answers = await self._call(
                lambda: self._llm.collective_rpc("receive_adapter", args=(folder, is_fused))
            )
            answer = _agreed(answers)
            lora = None if is_fused else await self._fill_slot(adapter, folder)
        is_alone = not self._served  # else its name tells its keys and values from the others'
        if is_alone and not await self._call(self._llm.reset_prefix_cache):
            raise EngineError(f"{adapter.name}: vLLM kept keys and values of older weights")
        self.served_effect = answer.pop("served_effect")
        ack = AdapterAck(**answer)
        self._served.pop(ack.version, None)
        self._served[ack.version] = lora
        return ack

    async def _fill_slot(self, adapter: AdapterVersion, folder: str) -> LoRARequest:
        """Empties the slots that are served no more, and fills one under a name never used yet."""
        for lora in self._slots:
            if lora not in self._served.values():
                await self._call(partial(self._llm.remove_lora, lora.lora_int_id))
        self._num_loaded += 1
        new = LoRARequest(f"{adapter.name}-{self._num_loaded}", self._num_loaded, folder)
        self._slots = [*(lora for lora in self._served.values() if lora), new]
        await self._call(partial(self._llm.add_lora, new))
        expected = {lora.lora_int_id for lora in self._slots}
        if (found := set(await self._call(self._llm.list_loras))) != expected:
            raise EngineError(f"vLLM serves the adapters {found}, not {expected}")
        return new

    async def _call(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return await function()
        except EngineDeadError as error:
            raise EngineError(f"vLLM's process is gone: {error}") from None

    async def _stop(self) -> None:
        """Ends what runs in the loop, this apart."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


def _agreed(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns what all workers answer. Raises: EngineError on an error, or where they differ."""
    for answer in answers:
        if "error" in answer:
            raise EngineError(str(answer["error"]))
    receipts = [{n: v for n, v in answer.items() if n != "served_effect"} for answer in answers]
    if any(receipt != receipts[0] for receipt in receipts):
        raise EngineError(f"vLLM's workers have received different adapters: {receipts}")
    return answers[0]
