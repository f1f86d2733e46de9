"""A vector environment for text, which waits on servers and sandboxes in parallel."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from agentpeft.envs.core.closing import CLOSE_TIMEOUT_S
from agentpeft.envs.core.errors import SettingsError, check_count
from agentpeft.envs.core.text_env import TextEnv

ResultT = TypeVar("ResultT")
StepResult = tuple[str, float, bool, bool, dict[str, Any]]
BatchResult = tuple[
    tuple[str, ...], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]
]


class TextVectorEnv(SyncVectorEnv):
    """`num_envs` copies of one environment, stepped in threads where their steps wait.

    Observations are tuples of `str`, actions sequences of `str`; rewards and flags have shape
    `(num_envs,)`. Autoreset follows Gymnasium's modes (next step by default). An environment is
    stepped by one thread at a time, but not always by the same. Where one raises (an `EnvFault`),
    the others' calls are finished first; the batch is lost, so `reset` before the next step.

    After Ctrl-C calls that threads have begun continue: the next `reset` or `step` waits for them,
    and `close` does so for 30 s; an environment that still runs then is closed by its thread.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env[str, str]]],
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        num_threads: int | None = None,
    ) -> None:
        """`num_threads` None: for environments whose steps wait one each, at most 64, else none.

        Raises: SettingsError.
        """
        self.closed = True  # nothing to close yet, also for `__del__` after an error
        if not env_fns:
            raise SettingsError("a vector environment needs num_envs >= 1")
        if num_threads is not None:
            check_count("num_threads", num_threads)
        with ExitStack() as on_error:
            envs: list[gymnasium.Env[str, str]] = []
            for make_env in env_fns:
                envs.append(make_env())
                on_error.callback(envs[-1].close)
            envs[0].metadata = dict(envs[0].metadata)  # Gymnasium 1.2 writes the mode into it
            try:
                made = [lambda env=env: env for env in envs]
                super().__init__(made, autoreset_mode=autoreset_mode)
            except RuntimeError as error:  # spaces that differ
                raise SettingsError(str(error)) from None
            on_error.pop_all()
        self.closed = False
        self._threads: ThreadPoolExecutor | None = None
        if num_threads or any(map(_has_waiting_steps, envs)):
            self._threads = ThreadPoolExecutor(num_threads or min(len(envs), 64))
        self._running: dict[int, Future[Any]] = {}
        self._is_over = np.zeros(self.num_envs, dtype=np.bool_)
        self._texts = [""] * self.num_envs

    @classmethod
    def make(
        cls,
        env_id: str,
        /,
        num_envs: int = 1,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        num_threads: int | None = None,
        **kwargs: Any,
    ) -> "TextVectorEnv":
        """Returns copies of a registered environment; `kwargs` go to each."""
        check_count("num_envs", num_envs)
        make_env = lambda: gymnasium.make(env_id, **kwargs)  # noqa: E731
        return cls([make_env] * num_envs, autoreset_mode, num_threads)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Resets the environments.

        An integer seed gives them seed, seed + 1, …. `options["reset_mask"]` (shape `(num_envs,)`)
        limits the reset to some; `options["task"]` may be a list, a tuple or a `Taskset` with one
        entry per environment.
        """
        seeds = self._seeds(seed)
        settings = dict(options or {})
        mask = settings.pop("reset_mask", np.ones(self.num_envs, dtype=np.bool_))
        tasks = settings.pop("task", None)
        if isinstance(tasks, str) or not isinstance(tasks, Sequence):
            tasks = [tasks] * self.num_envs
        elif len(tasks) != self.num_envs:
            raise ValueError(f"expected {self.num_envs} tasks, got {len(tasks)}")
        if np.shape(mask) != (self.num_envs,) or np.asarray(mask).dtype != np.bool_:
            raise ValueError(f"reset_mask needs {self.num_envs} booleans, got {mask!r:.60}")
        chosen = np.flatnonzero(mask)

        def reset_one(index: int) -> tuple[str, dict[str, Any]]:
            options = settings if tasks[index] is None else {**settings, "task": tasks[index]}
            return self.envs[index].reset(seed=seeds[index], options=options or None)

        results = self._call_each(reset_one, chosen)
        for index, (observation, _) in zip(chosen, results, strict=True):
            self._texts[index] = observation
            self._is_over[index] = False
        return tuple(self._texts), self._batch(chosen, [info for _, info in results])

    def step(self, actions: Sequence[str]) -> BatchResult:
        """Steps every environment and returns the batch of results.

        Raises: TypeError for a single text, ValueError for another number of actions, EnvFault.
        """
        if isinstance(actions, str | bytes):
            kind = type(actions).__name__
            raise TypeError(f"expected {self.num_envs} actions, got one {kind} {actions!r:.60}")
        if len(actions) != self.num_envs:
            raise ValueError(f"expected {self.num_envs} actions, got {len(actions)}")
        if self.autoreset_mode is AutoresetMode.DISABLED and self._is_over.any():
            raise gymnasium.error.ResetNeeded(
                f"environments {np.flatnonzero(self._is_over).tolist()} have ended; reset them"
            )
        results = self._call_each(
            lambda index: self._step_one(index, actions[index]), range(self.num_envs)
        )
        infos = self._batch(range(self.num_envs), [result[4] for result in results])
        self._texts = [result[0] for result in results]
        terminated = np.array([result[2] for result in results], dtype=np.bool_)
        truncated = np.array([result[3] for result in results], dtype=np.bool_)
        self._is_over = terminated | truncated
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            self._is_over = np.zeros_like(self._is_over)
        rewards = np.array([result[1] for result in results], dtype=np.float64)
        return tuple(self._texts), rewards, terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ARG002 (Gymnasium's signature)
        """Closes all environments and threads, even if closing one raises."""
        self.closed = True
        if self._threads:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._wait_for_calls(CLOSE_TIMEOUT_S)
            if all(call.done() for call in self._running.values()):
                self._threads.shutdown(wait=True)
        with ExitStack() as closing:
            for index, env in reversed(list(enumerate(self.envs))):
                running = self._running.get(index)
                if running and not running.done():
                    running.add_done_callback(partial(_close_afterwards, env))
                else:
                    closing.callback(env.close)

    def _step_one(self, index: int, action: str) -> StepResult:
        env = self.envs[index]
        if self.autoreset_mode is AutoresetMode.NEXT_STEP and self._is_over[index]:
            observation, info = env.reset()
            return observation, 0.0, False, False, info
        observation, reward, terminated, truncated, info = env.step(action)
        if self.autoreset_mode is AutoresetMode.SAME_STEP and (terminated or truncated):
            final = {"final_obs": observation, "final_info": info}
            observation, info = env.reset()
            info = {**info, **final}
        return observation, float(reward), terminated, truncated, info

    def _seeds(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, int | np.integer):
            return [int(seed) + index for index in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"expected {self.num_envs} seeds, got {len(seed)}")
        return seed

    def _call_each(
        self, function: Callable[[int], ResultT], indices: Sequence[int] | NDArray[np.intp]
    ) -> list[ResultT]:
        """Returns results in order, once all calls have ended, even if one raised."""
        if self.closed:
            raise ClosedEnvironmentError("this vector environment has been closed")
        if self._threads is None:
            return _call_in_turn(function, indices)
        self._wait_for_calls(None)  # Ctrl-C may have left some behind
        self._running = {}
        for index in indices:
            self._running[int(index)] = self._threads.submit(function, int(index))
        futures = list(self._running.values())
        try:
            errors = [error for error in (future.exception() for future in futures) if error]
        finally:  # after Ctrl-C, what has not begun does not begin
            for future in futures:
                future.cancel()
        if errors:
            raise errors[0]
        return [future.result() for future in futures]

    def _batch(
        self, indices: Sequence[int] | NDArray[np.intp], infos: Sequence[dict[str, Any]]
    ) -> dict[str, Any]:
        """Returns the environments' infos as `_add_info` gives them, in a fraction of its time."""
        columns = _to_columns(infos) if len(infos) == self.num_envs else None
        if columns is None:
            batch: dict[str, Any] = {}
            for index, info in zip(indices, infos, strict=True):
                batch = self._add_info(batch, info, int(index))
            return batch
        masks = {f"_{key}": np.ones(self.num_envs, np.bool_) for key in columns}
        return columns | masks

    def _wait_for_calls(self, timeout_s: float | None) -> None:
        """Waits for the calls that threads have begun (`wait` may never see a cancelled one)."""
        wait([call for call in self._running.values() if not call.cancelled()], timeout_s)


def _call_in_turn(
    function: Callable[[int], ResultT], indices: Sequence[int] | NDArray[np.intp]
) -> list[ResultT]:
    results: list[ResultT] = []
    for position, index in enumerate(indices):
        try:
            results.append(function(int(index)))
        except Exception:
            _call_in_turn(function, indices[position + 1 :])
            raise
    return results


def _to_columns(infos: Sequence[dict[str, Any]]) -> dict[str, NDArray[Any]] | None:
    """Returns each key's values as an array; None where keys differ or values are no plain ones."""
    keys = infos[0].keys()
    if any(info.keys() != keys for info in infos):
        return None
    columns = {}
    for key in keys:
        values = [info[key] for info in infos]
        kinds = set(map(type, values))
        if len(kinds) > 1 or not issubclass(kind := kinds.pop(), bool | int | str | tuple):
            return None
        dtype = kind if kind in (bool, int) else object
        columns[key] = np.fromiter(values, dtype, len(values))
    return columns


def _has_waiting_steps(env: gymnasium.Env[str, str]) -> bool:
    """Returns whether threads help; for an environment that is no `TextEnv` they may."""
    text_env = env.unwrapped
    return not isinstance(text_env, TextEnv) or text_env.has_waiting_steps


def _close_afterwards(env: gymnasium.Env[str, str], _call: Future[Any]) -> None:
    env.close()


make_arithmetic = partial(TextVectorEnv.make, "AgentPEFT/Arithmetic-v0")
make_gsm8k = partial(TextVectorEnv.make, "AgentPEFT/GSM8K-v0")
make_db_bench = partial(TextVectorEnv.make, "AgentPEFT/DBBench-v0")
make_os_interaction = partial(TextVectorEnv.make, "AgentPEFT/OSInteraction-v0")
make_mixture = partial(TextVectorEnv.make, "AgentPEFT/Mixture-v0")
"""The vector entry points of the suite's environments."""
