"""`VllmProcess`: vLLM's `AsyncLLM` and the event loop that asks it (the only door to vllm).

vLLM's own part runs in one process beside this one, on CPUs too: a second one for its worker would
share memory with it by polling, on cores that the model needs. That process ends with this one.
Over several GPUs it has a process for each besides, which ends with it.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

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
from agentpeft.policies.engines.vllm.cores import CoreClaim
from agentpeft.policies.engines.vllm.settings import VllmSettings
from agentpeft.policies.errors import EngineError
from agentpeft.policies.messages import Floats, GenerationRequest, Ids
from agentpeft.policies.workers.owned_process import read_root_exception

T = TypeVar("T")
Slot: TypeAlias = LoRARequest
"""An adapter that vLLM holds, under a name that was never used before."""
_CLOSE_S = 1.0
_PAUSE_S = 0.005


class VllmProcess:
    """vLLM over one base, for the engines of one run or of several (`VllmEngine`).

    Its methods but `close` run in its event loop: hand them to `submit`. `fault` says why it serves
    no more.
    """

    def __init__(
        self, folder: Path, settings: VllmSettings, claim: CoreClaim, exceptions: Path
    ) -> None:
        """Starts vLLM on a saved model. `claim` is closed with it.

        To the file `exceptions` its process adds what it raises at its start. Raises:
        SettingsError where it does not start.
        """
        self.settings, self._claim = settings, claim
        self.fault: str | None = None
        self._num_loaded = self._num_scored = self._num_under_way = 0
        self._tickets: set[str] = set()
        """Of what is being sampled."""
        self._slots: set[int] = set()
        self._filling = asyncio.Lock()
        self._waking = asyncio.Lock()
        self._is_asleep = False
        is_on_gpu = settings.gpu_share > 0
        if current_platform.is_cpu() == is_on_gpu:
            build, where = ("CPUs", "a GPU") if is_on_gpu else ("GPUs", "none")
            raise SettingsError(
                f"the vllm that is installed is built for {build}, and "
                f"env_runners.num_gpus_per_env_runner asks for {where}"
            )
        try:
            self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**settings.engine_args(folder)))
        except (RuntimeError, ValueError, OSError, ImportError) as error:
            # Of an exception in its process vLLM says here that it is "above", on standard error;
            # of a process that was killed, nothing, if it asks before the exit status is there
            told = str(error).replace("See root cause above. ", "")
            told = told.replace("Failed core proc(s): {}", "its process ended without an exception")
            reason = read_root_exception(exceptions) or " ".join(told.split())
            raise SettingsError(
                f"vLLM does not start on {folder}: {reason:.400} (where memory is short: set "
                "env_runners.kv_cache_gib and max_context_tokens, or take fewer env runners)"
            ) from None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm", daemon=True)
        self._thread.start()

    @property
    def is_dead(self) -> bool:
        """Whether vLLM's own process has ended, or can serve nothing more."""
        return self.fault is None and self._llm.errored

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Has the event loop run one of the methods below."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def sample(
        self,
        request: GenerationRequest,
        max_tokens: int,
        stops: Sequence[int],
        slot: Slot | None,
        salt: str,
        ticket: str,
    ) -> tuple[Ids, Floats, bool]:
        """Returns sampled ids, their log-probabilities, and whether it was interrupted.

        `salt` names prompts to be shared, `ticket` this request. Raises: EngineError.
        """
        params = SamplingParams(
            temperature=request.temperature,
            seed=int(np.random.SeedSequence(request.seed).generate_state(1)[0]),
            max_tokens=max_tokens,
            stop_token_ids=list(stops),
            ignore_eos=True,  # what stops is said above
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._tickets.add(ticket)
        try:
            output = await self._ask(request.prompt_ids, params, salt, slot, ticket)
        finally:
            self._tickets.discard(ticket)
        (sampled,) = output.outputs
        ids = np.array(sampled.token_ids, np.int64)
        logprobs = np.array(sampled.logprobs.logprobs if len(ids) else (), np.float32)
        if len(logprobs) != len(ids) or not np.isfinite(logprobs).all():
            raise EngineError("the model's log-probabilities are not finite")
        return ids, logprobs, sampled.finish_reason == "abort"

    async def interrupt(self, tickets: Iterable[str]) -> None:
        """Has requests end soon with what they have; returns once they are answered."""
        while waiting := self._tickets.intersection(tickets):
            await self._call(partial(self._llm.abort, waiting))  # it ignores those not yet begun
            await asyncio.sleep(_PAUSE_S)

    async def score(self, sequences: Sequence[Ids], slot: Slot | None) -> list[Floats]:
        """Returns the log-probabilities of each sequence's tokens but the first.

        Raises: EngineError.
        """
        return list(await asyncio.gather(*(self._score(ids, slot) for ids in sequences)))

    async def _score(self, ids: Ids, slot: Slot | None) -> Floats:
        params = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            prompt_logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        # Keys and values under a name of their own are nobody's older ones
        name = f"score-{self._num_scored}"
        self._num_scored += 1
        output = await self._ask(ids, params, name, slot, name)
        return np.array(output.prompt_logprobs.logprobs[: len(ids) - 1], np.float32)

    async def _ask(
        self, ids: Ids, params: SamplingParams, salt: str, slot: Slot | None, name: str
    ) -> RequestOutput:
        await self._wake_up()
        prompt = TokensPrompt(prompt_token_ids=ids.tolist(), cache_salt=salt)
        outputs = self._llm.generate(prompt, params, name, lora_request=slot)
        self._num_under_way += 1
        try:
            (output,) = [output async for output in outputs]
        except (EngineDeadError, EngineGenerateError, ValueError) as error:
            raise EngineError(f"vLLM failed: {type(error).__name__}: {error}") from None
        finally:
            self._num_under_way -= 1
        return output

    async def receive(self, folder: Path, is_fused: bool) -> dict[str, Any]:
        """Has vLLM's workers read an adapter; returns what they answer. Raises: EngineError."""
        await self._wake_up()
        return _agreed(
            await self._call(
                lambda: self._llm.collective_rpc("receive_adapter", args=(str(folder), is_fused))
            )
        )

    async def fill_slot(self, name: str, folder: Path, emptied: Sequence[Slot]) -> Slot:
        """Empties slots, and fills one under a name and an id that were never used.

        Raises: EngineError, and where vLLM holds other adapters than it was given.
        """
        async with self._filling:  # or one engine's adapter would be in the way of another's check
            await self._empty(emptied)
            self._num_loaded += 1
            new = LoRARequest(f"{name}-{self._num_loaded}", self._num_loaded, str(folder))
            self._slots.add(new.lora_int_id)
            try:
                await self._call(partial(self._llm.add_lora, new))
                if (served := set(await self._call(self._llm.list_loras))) != self._slots:
                    raise EngineError(f"vLLM serves the adapters {served}, not {self._slots}")
            except BaseException:
                await self._empty([new])
                raise
            return new

    async def empty_slots(self, slots: Sequence[Slot]) -> None:
        """Has vLLM forget adapters. Raises: EngineError."""
        async with self._filling:
            await self._empty(slots)

    async def _empty(self, slots: Sequence[Slot]) -> None:
        await self._wake_up()
        for old in slots:
            self._slots.discard(old.lora_int_id)
            await self._call(partial(self._llm.remove_lora, old.lora_int_id))

    async def sleep(self) -> None:
        """Gives the memory of the cache back; on a GPU the weights go to the machine's memory.

        Whatever samples, scores or loads wakes vLLM again. Raises: EngineError, also where requests
        are under way.
        """
        async with self._waking:
            if self._num_under_way:
                raise EngineError("vLLM cannot sleep while requests are under way")
            self._is_asleep = True
            await self._call(self._llm.sleep)
            if not self.settings.gpu_share:  # of which vLLM gives nothing back by itself
                await self._call(partial(self._llm.collective_rpc, "free_cache"))

    async def _wake_up(self) -> None:
        async with self._waking:
            # vLLM 0.29 and older return None, and raise where they do not wake up
            if self._is_asleep and await self._call(self._llm.wake_up) is False:
                raise EngineError("vLLM did not wake up")
            self._is_asleep = False

    async def forget_prompts(self) -> bool:
        """Drops all keys and values; False where requests are under way. Raises: EngineError."""
        return bool(await self._call(self._llm.reset_prefix_cache))

    def close(self) -> None:
        """Ends vLLM's process; requests under way fail. Idempotent."""
        if self.fault:
            return
        self.fault = "the engine is closed"
        self.submit(self._stop()).result()
        self._llm.shutdown(timeout=_CLOSE_S)
        del self._llm  # at the interpreter's end it would look for modules that are gone
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._claim.close()

    async def _call(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return await function()
        except EngineDeadError as error:
            raise EngineError(f"vLLM's process is gone: {error}") from None
        except Exception as error:
            if type(error) is Exception:  # vLLM's client has no other for what failed elsewhere
                raise EngineError(f"vLLM failed: {' '.join(str(error).split()):.400}") from None
            raise

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
