"""The settings of the processes that play and learn, and of what happens when one fails."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field
from pydantic.types import NonNegativeFloat

from agentpeft.policies.settings.section import Count, CountOrZero, Section

if TYPE_CHECKING:
    from agentpeft.policies.settings.config import Settings


class EnvRunnerSettings(Section):
    """The processes that play the episodes, and their engines."""

    whole_may_change = True

    num_env_runners: CountOrZero = 1
    """Number of runner processes (Ray actors). 0 plays and learns in this process, without
    Ray.
    """
    num_gpus_per_env_runner: float = Field(default=0.0, ge=0)
    """GPUs that Ray reserves for each runner, all of one machine. Above 0 the model is on the GPU;
    2 and more are for [a vLLM engine over several GPUs](vllm.md#a-model-larger-than-one-gpu).
    """
    engine: Literal["transformers", "vllm", "scripted"] = "transformers"
    """`transformers` and [`vllm`](vllm.md) sample from the model; `scripted` plays the
    oracle.
    """
    shared_engines: str | None = Field(default=None, min_length=1)
    """[Engines that other runs use too](vllm.md#engines-that-runs-share), as `module:NAME`
    (`agentpeft.apps.shared_engines:sweep`): each runner plays with one of them, in LoRA slots of
    its own. None: each has an engine of its own.
    """
    serving: Literal["auto", "native", "fused"] = "auto"
    """How an adapter is served: `native` in LoRA layers, `fused` into the weights. Auto is
    `native` over a base in bfloat16, else `fused`
    ([why](delivery.md#small-steps-over-a-bfloat16-base)).
    """
    kv_cache_gib: float | None = Field(default=None, gt=0)
    """Memory of a vLLM engine for keys and values, in GiB, on each of its GPUs. None: 1 on a CPU;
    on a GPU what is left of its share.
    """
    sleep_while_learning: bool = False
    """Engines leave their memory to the learners while these learn: keys and values, of vLLM on a
    GPU the weights too ([one GPU](delivery.md#learner-and-runners-on-one-gpu)).
    """
    max_concurrent_episodes: Count = 256
    """Episodes that each runner plays at once; whenever fewer are in play it takes the next group.
    """
    max_new_tokens: Count = 256
    """Longest turn in tokens. It is also the constant that the loss of `dr_grpo` is divided by."""
    max_context_tokens: Count | None = None
    """Longest conversation in tokens; a full one ends the episode (`context_limit`). None:
    the model's own limit.
    """
    temperature: NonNegativeFloat = 1.0
    """Sampling temperature of training; greedy evaluation does not read it. 0 is refused with
    RL.
    """
    episode_timeout_s: float = Field(default=600.0, gt=0)
    """Time of an episode, the engine's included. One that takes longer leaves its group,
    counted in `sample/num_slow_episodes`. A step of the environment that takes longer than a tenth
    of it is a fault: the episode is played again in a fresh environment.
    """
    agent: dict[str, Any] = Field(default_factory=dict)
    """What plays episodes instead of the built-in loop: `class` names it as `module:Class`, and the
    other keys are its keyword arguments, as for [a program of yours](gateway.md).
    """

    @property
    def step_timeout_s(self) -> float:
        """How long a step of the environment may take."""
        return self.episode_timeout_s / 10

    def conflicts(self, run: "Settings") -> Iterator[str]:
        """Yields what cannot work or has no effect in `run`."""
        if self.engine != "vllm" and self.kv_cache_gib is not None:
            yield f"env_runners.kv_cache_gib has no effect with engine {self.engine!r}"
        if self.shared_engines is not None:
            yield from self._conflicts_of_sharing(self.shared_engines, run)
        if self.engine == "scripted" and (self.agent or self.serving != "auto"):
            name = "agent" if self.agent else f"serving {self.serving!r}"
            yield f"env_runners.{name} has no effect with engine 'scripted'"
        yield from self._conflicts_of_sleeping(run)
        num_gpus = self.num_gpus_per_env_runner
        if num_gpus > 1 and self.engine != "vllm":
            yield (
                f"env_runners.num_gpus_per_env_runner {num_gpus:g}: engine {self.engine!r} "
                "computes on one GPU; set it to 1 and take more env runners, or take engine 'vllm'"
            )
        if num_gpus > 1 and num_gpus % 1 > 0:
            yield (
                f"env_runners.num_gpus_per_env_runner {num_gpus:g} must be whole above 1: vLLM "
                "divides each layer over all of them"
            )
        if self.serving == "native" and not run.lora.use_lora:
            yield "env_runners.serving = 'native' serves adapters: it needs lora.rank >= 1"
        if self.engine == "vllm" and 0 < self.temperature < 0.01:
            yield (
                f"env_runners.temperature {self.temperature:g} is taken for 0.01 by vLLM: raise it"
            )
        limits = [self.max_context_tokens, run.tiny.max_context_tokens if run.is_tiny else None]
        if self.max_new_tokens >= min((n for n in limits if n is not None), default=10**9):
            yield (
                f"env_runners.max_new_tokens {self.max_new_tokens} leaves no room for a prompt: it "
                "must be below env_runners.max_context_tokens (of the tiny model: "
                f"{run.tiny.max_context_tokens})"
            )
        if self.temperature == 0 and run.is_rl:
            yield (
                "env_runners.temperature 0 always samples the same episode: RL needs > 0 "
                "(evaluation is greedy by itself)"
            )

    def limit_context(self, model_limit: int) -> int:
        """Returns the most tokens of a conversation: the model's limit, or the one that is set."""
        return min(self.max_context_tokens or model_limit, model_limit)

    def _conflicts_of_sleeping(self, run: "Settings") -> Iterator[str]:
        if not self.sleep_while_learning:
            return
        name = "env_runners.sleep_while_learning"
        if self.engine == "scripted":
            yield f"{name} has no effect with engine 'scripted'"
        if run.max_adapter_lag > 0:
            yield f"{name}: with max_adapter_lag > 0 the runners play while the learners learn"
        if self.shared_engines is not None:
            yield f"{name}: other runs play with env_runners.shared_engines while this one learns"
        of_runner, of_learner = self.num_gpus_per_env_runner, run.learners.num_gpus_per_learner
        if of_runner > 0 and (of_learner == 0 or of_runner + of_learner > 1):
            yield (
                f"{name}: env_runners.num_gpus_per_env_runner {of_runner:g} and "
                f"learners.num_gpus_per_learner {of_learner:g} share no GPU"
            )

    def _conflicts_of_sharing(self, shared_engines: str, run: "Settings") -> Iterator[str]:
        name = f"env_runners.shared_engines {shared_engines!r}"
        module, _, group = shared_engines.partition(":")
        if not (module and group):
            yield (
                f"{name} must be MODULE:NAME: the module that finds the engines, and what they are "
                "called there, as agentpeft.apps.shared_engines:sweep"
            )
        if self.engine != "vllm":
            yield f"{name}: the engines are vLLM's, set env_runners.engine = 'vllm'"
        if self.serving == "fused" or not run.lora.use_lora:
            yield f"{name}: they serve adapters in slots, neither fused nor all weights"
        if self.num_gpus_per_env_runner > 0 or self.kv_cache_gib is not None:
            yield (
                f"{name}: GPUs and memory for keys and values are the engines', so leave "
                "env_runners.num_gpus_per_env_runner and env_runners.kv_cache_gib out"
            )


class LearnerSettings(Section):
    """How many learners share an update, where, and in what portions each computes."""

    whole_may_change = True

    num_learners: Count = 1
    """Processes that share each update ([how](how_it_works.md#several-learners)). The other
    settings of this section hold for each of them.
    """
    num_gpus_per_learner: float = Field(default=0.0, ge=0)
    """GPUs that Ray reserves. Above 0 the model is on the GPU."""
    autocast: Literal["auto", "off", "bfloat16"] = "auto"
    """Computes in bfloat16. Auto does so on a GPU, and on a CPU with AVX512-BF16 or AMX for models
    of 50 million weights or more.
    """
    shard_base: bool = False
    """Each learner holds one part in `num_learners` of each layer of the frozen base, and the
    learners gather a layer while they run it: for
    [a base larger than one device](how_it_works.md#a-base-larger-than-one-device). Takes more time.
    """
    gradient_checkpointing: bool = False
    """Computes the layers again in the backward pass: takes less memory and more time."""
    max_tokens_per_micro_batch: Count = 8192
    """Tokens of a forward pass, padding included; the prompt of a group is computed once. Halved
    when memory does not suffice, and doubled again after 20 updates for which it did.
    """

    def conflicts(self, run: "Settings") -> Iterator[str]:
        """Yields what cannot work or has no effect in `run`."""
        if self.num_learners > 1 and run.env_runners.num_env_runners == 0:
            yield (
                f"learners.num_learners {self.num_learners} are processes of their own, which the "
                "serial mode (env_runners.num_env_runners = 0) does not start: set it to 1"
            )
        if self.num_learners > run.training.num_groups:
            yield (
                f"learners.num_learners {self.num_learners} must be <= training.num_groups "
                f"{run.training.num_groups}: a group is one learner's"
            )
        if self.num_learners > 1 and self.num_gpus_per_learner % 1 > 0:
            yield (
                f"learners.num_gpus_per_learner {self.num_gpus_per_learner} must be whole with "
                "several learners, which nccl cannot place on one GPU"
            )
        if not self.shard_base:
            return
        if self.num_learners == 1:
            yield (
                "learners.shard_base deals a base out over several learners: learners.num_learners "
                "must be >= 2, got 1"
            )
        if not run.lora.use_lora:
            yield (
                "learners.shard_base deals a frozen base out, and lora.rank = 0 trains all "
                "weights: set it to false"
            )
        if run.model.is_in_4_bits:
            yield "learners.shard_base cannot deal out 4 bits: set model.dtype to 'bfloat16'"


class FaultToleranceSettings(Section):
    """Retry limits, timeouts and delivery checks; RLlib's names where it has one.

    Restarts are counted over the whole run.
    """

    whole_may_change = True

    placement_timeout_s: float = Field(default=30.0, gt=0)
    """What Ray cannot place in time ends the run, with what was asked for and what there is.
    The run goes on without a restarted runner for which there is no place, as long as there
    are others.
    """
    max_num_restarts: CountOrZero = 20
    """How often runners are restarted that are gone, hang, whose engine fails or that cannot
    prove their adapter; and how often the learners are, from the last checkpoint, but at most 3
    times. One more ends the run, and 0 ends it at once.
    """
    env_runner_restore_timeout_s: float = Field(default=1800.0, gt=0)
    """How long runners, or the learner, may take to start, loading the model included."""
    env_runner_health_probe_timeout_s: float = Field(default=30.0, gt=0)
    """While results are waited for, a runner or learner that does not answer a ping for so
    long is ended, and counts as gone. Where Ray's own processes (raylet, GCS) do not answer the
    driver for twice as long, 60 s at least, the run ends, to be resumed.
    """
    probe_interval: CountOrZero = 1
    """At every n-th adapter version learner and engines must [agree on fixed
    tokens](delivery.md): their log-probabilities within 0.001 in float32, in bfloat16 within 0.05
    or a hundredth of their mean, whichever is more. 0: never.
    """
