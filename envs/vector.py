"""A thread-based vector environment for text: steps wait on databases and shells side by side."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from agentpeft.envs.errors import SettingsError

ResultT = TypeVar("ResultT")
StepResult = tuple[str, float, bool, bool, dict[str, Any]]
BatchResult = tuple[
    tuple[str, ...], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]
]


class TextVectorEnv(VectorEnv[tuple[str, ...], Sequence[str], NDArray[Any]]):
    """`num_envs` copies of one environment, stepped in threads.

    Observations are tuples of `str`, actions sequences of `str`; rewards and flags have shape
    `(num_envs,)`. Autoreset follows Gymnasium's modes (next step by default). An environment is
    stepped by one thread at a time, but not always by the same. Where one raises (an `EnvFault`),
    the others' calls are finished first; the batch is lost, so `reset` before the next step.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env[str, str]]],
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        num_threads: int | None = None,
    ) -> None:
        """`num_threads` None is one per environment, at most 64. Raises: SettingsError."""
        self.closed = True  # nothing to close yet, also for `__del__` after an error
        if not env_fns:
            raise SettingsError("a vector environment needs num_envs >= 1")
        if num_threads is not None and num_threads < 1:
            raise SettingsError(f"num_threads must be >= 1, got {num_threads}")
        mode = AutoresetMode(autoreset_mode)
        self._threads = ThreadPoolExecutor(num_threads or min(len(env_fns), 64))
        self.envs: list[gymnasium.Env[str, str]] = []
        self.closed = False
        with ExitStack() as on_error:
            on_error.callback(self.close)
            self.envs.extend(make_env() for make_env in env_fns)
            on_error.pop_all()
        self.num_envs = len(self.envs)
        self.autoreset_mode = mode
        self.metadata = {**self.envs[0].metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = self.envs[0].render_mode
        self.single_action_space = self.envs[0].action_space
        self.single_observation_space = self.envs[0].observation_space
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self._is_over = np.zeros(self.num_envs, dtype=np.bool_)
        self._observations = [""] * self.num_envs

    @classmethod
    def make(
        cls,
        env_id: str,
        num_envs: int = 1,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        num_threads: int | None = None,
        **kwargs: Any,
    ) -> "TextVectorEnv":
        """Returns copies of a registered environment; `kwargs` go to each."""
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
            own = settings if tasks[index] is None else {**settings, "task": tasks[index]}
            return self.envs[index].reset(seed=seeds[index], options=own or None)

        infos: dict[str, Any] = {}
        for index, (observation, info) in zip(
            chosen, self._in_threads(reset_one, chosen), strict=True
        ):
            self._observations[index] = observation
            self._is_over[index] = False
            infos = self._add_info(infos, info, int(index))
        return tuple(self._observations), infos

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
        results = list(
            self._in_threads(
                lambda index: self._step_one(index, actions[index]), range(self.num_envs)
            )
        )
        infos: dict[str, Any] = {}
        for index, result in enumerate(results):
            infos = self._add_info(infos, result[4], index)
        self._observations = [result[0] for result in results]
        terminated = np.array([result[2] for result in results], dtype=np.bool_)
        truncated = np.array([result[3] for result in results], dtype=np.bool_)
        self._is_over = terminated | truncated
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            self._is_over = np.zeros_like(self._is_over)
        rewards = np.array([result[1] for result in results], dtype=np.float64)
        return tuple(self._observations), rewards, terminated, truncated, infos

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method, or reads an attribute, of every environment."""
        values = [env.get_wrapper_attr(name) for env in self.envs]
        return tuple(value(*args, **kwargs) if callable(value) else value for value in values)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Returns an attribute of every environment."""
        return tuple(env.get_wrapper_attr(name) for env in self.envs)

    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute of every environment: a list or tuple has one value for each."""
        if not isinstance(values, list | tuple):
            values = [values] * self.num_envs
        for env, value in zip(self.envs, values, strict=True):
            env.set_wrapper_attr(name, value)

    def render(self) -> tuple[Any, ...]:
        """Returns every environment's rendering."""
        return self.call("render")

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ARG002 (Gymnasium's signature)
        """Closes the environments and the threads."""
        for env in self.envs:
            env.close()
        self._threads.shutdown(wait=True)

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

    def _in_threads(
        self, function: Callable[[int], ResultT], indices: Iterable[int]
    ) -> Iterable[ResultT]:
        """Returns results in order, after all calls have ended, also where one raised."""
        futures = [self._threads.submit(function, int(index)) for index in indices]
        errors = [error for error in (future.exception() for future in futures) if error]
        if errors:
            raise errors[0]
        return [future.result() for future in futures]


def make_arithmetic(num_envs: int = 1, **kwargs: Any) -> TextVectorEnv:
    """Vector entry point of `AgentPEFT/Arithmetic-v0`."""
    return TextVectorEnv.make("AgentPEFT/Arithmetic-v0", num_envs, **kwargs)


def make_gsm8k(num_envs: int = 1, **kwargs: Any) -> TextVectorEnv:
    """Vector entry point of `AgentPEFT/GSM8K-v0`."""
    return TextVectorEnv.make("AgentPEFT/GSM8K-v0", num_envs, **kwargs)


def make_db_bench(num_envs: int = 1, **kwargs: Any) -> TextVectorEnv:
    """Vector entry point of `AgentPEFT/DBBench-v0`."""
    return TextVectorEnv.make("AgentPEFT/DBBench-v0", num_envs, **kwargs)


def make_os_interaction(num_envs: int = 1, **kwargs: Any) -> TextVectorEnv:
    """Vector entry point of `AgentPEFT/OSInteraction-v0`."""
    return TextVectorEnv.make("AgentPEFT/OSInteraction-v0", num_envs, **kwargs)
