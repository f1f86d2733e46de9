"""What a vLLM engine is to serve and with what means: `VllmSettings`, from a run's settings."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoConfig

from agentpeft.envs.core.errors import SettingsError
from agentpeft.policies.models.load import choose_device, choose_dtype, choose_serving
from agentpeft.policies.settings.config import Settings

MAX_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The ranks that vLLM has LoRA slots for."""
Serving = Literal["native", "fused"]
_GIB = 1 << 30
_CPU_CACHE_BYTES = _GIB
_PREFILL_TOKENS = 8192
_CPU_HEAD_SIZES = (32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Those that vLLM 0.32's attention kernels for CPUs take."""
_RECEIVER = "agentpeft.policies.engines.vllm.worker.AdapterReceiver"


@dataclass(frozen=True)
class VllmSettings:
    """What an engine serves, and with what means.

    `serving`: "native" runs LoRA's own kernels beside the base's, "fused" changes the weights.
    `gpu_share` 0 computes on the CPU. `kv_cache_bytes` None: what is left of the GPU's share.
    `num_parts`: over so many GPUs (or processes on CPUs) each layer is divided, by vLLM's tensor
    parallelism; share, memory and threads are then each one's.
    `sleeps`: it will be told to sleep, which a GPU's memory must be prepared for.
    Without an adapter nothing is served if `needs_adapter`; "native" serves `num_adapters` at once.
    """

    serving: Serving
    dtype: Literal["float32", "bfloat16"]
    max_context_tokens: int
    max_concurrent: int = 256
    max_rank: int = 16
    kv_cache_bytes: int | None = _CPU_CACHE_BYTES
    gpu_share: float = 0.0
    num_threads: int = 2
    needs_adapter: bool = True
    num_adapters: int = 1
    num_parts: int = 1
    sleeps: bool = False

    def engine_args(self, folder: Path) -> dict[str, Any]:
        """Returns the arguments of vLLM's `AsyncEngineArgs`.

        Raises: SettingsError on a rank that vLLM has no slot for.
        """
        args: dict[str, Any] = {
            "model": str(folder),
            "skip_tokenizer_init": True,
            "dtype": self.dtype,
            "hf_overrides": {"head_dtype": "float32"},  # as `FloatHead` does
            "max_model_len": self.max_context_tokens,
            "max_num_seqs": self.max_concurrent,
            # An `AsyncLLM` would take 2,048 at once where vLLM's other entrances take 16,384
            "max_num_batched_tokens": max(_PREFILL_TOKENS, self.max_concurrent),
            "kv_cache_memory_bytes": self.kv_cache_bytes,
            "enable_prefix_caching": True,
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",
            "enforce_eager": not self.gpu_share,  # compiling for CPUs takes minutes
            "tensor_parallel_size": self.num_parts,
            # Not Ray, which would place the parts anew: all GPUs are of the runner's machine
            "distributed_executor_backend": "uni" if self.num_parts == 1 else "mp",
            "worker_extension_cls": _RECEIVER,
            "disable_log_stats": True,
            "use_tqdm_on_load": False,
        }
        if self.gpu_share:
            # So much must be free at each start, though a cache of given size is not cut by it
            has_size = self.kv_cache_bytes is not None
            args["gpu_memory_utilization"] = 0.01 if has_size else 0.9 * self.gpu_share
            args["enable_sleep_mode"] = self.sleeps
            # Fewer graphs than vLLM would capture; its older model runner's with LoRA only
            args["compilation_config"] = {
                "cudagraph_capture_sizes": _choose_graph_sizes(self.max_concurrent),
                "cudagraph_specialize_lora": not self.needs_adapter,
            }
        else:
            # A prompt in parts would end vLLM: it rewinds seeds after each, on GPUs only
            args["enable_chunked_prefill"] = False
            args["max_num_batched_tokens"] = max(_PREFILL_TOKENS, self.max_context_tokens)
        if self.serving == "native":
            slot = next((rank for rank in MAX_RANKS if rank >= self.max_rank), None)
            if slot is None:
                raise SettingsError(
                    f"vLLM has LoRA slots for ranks up to {MAX_RANKS[-1]}, got {self.max_rank}: "
                    "set env_runners.serving = 'fused'"
                )
            args |= {"enable_lora": True, "max_loras": self.num_adapters, "max_lora_rank": slot}
        return args


def _choose_graph_sizes(max_concurrent: int) -> list[int]:
    """Returns the steps' sizes in tokens that graphs are captured for: others take the next one's.

    >>> _choose_graph_sizes(70)
    [1, 2, 4, 8, 16, 24, 32, 48, 64, 70, 128, 192, 256, 320, 384, 448, 512]
    """
    # Of steps without prompts vLLM captures the whole, if no larger than the slots; of those with
    # prompts, up to any size that is given, the pieces between attention
    largest = min(max_concurrent, 512)
    sizes = {1, 2, 4, 8, 16, 24, *range(32, 129, 16), *range(160, 513, 32), largest}
    return sorted(size for size in sizes if size <= largest or size % 64 == 0)


def read_vllm_settings(settings: Settings, folder: Path) -> VllmSettings:
    """Returns what a run's settings mean for a saved model.

    Raises: SettingsError where a CPU has no kernel for the model's heads, or too little memory.
    """
    runners = settings.env_runners
    device = choose_device(runners.num_gpus_per_env_runner)
    dtype = choose_dtype(settings.model, device)
    shape = AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config()
    given = None if runners.kv_cache_gib is None else int(runners.kv_cache_gib * _GIB)
    serving = choose_serving(settings, dtype)
    gpu_share, num_parts = divide_gpus(runners.num_gpus_per_env_runner)
    result = VllmSettings(
        serving=serving,
        dtype="bfloat16" if dtype == torch.bfloat16 else "float32",
        max_context_tokens=runners.limit_context(shape.max_position_embeddings),
        max_concurrent=runners.max_concurrent_episodes,
        max_rank=settings.lora.rank,
        kv_cache_bytes=_CPU_CACHE_BYTES if given is None and device.type == "cpu" else given,
        gpu_share=gpu_share,
        num_parts=num_parts,
        num_threads=settings.threads_per_env_runner,
        num_adapters=settings.num_served_versions if serving == "native" else 1,
        sleeps=runners.sleep_while_learning,
    )
    if device.type == "cpu":
        _check_cpu(result, shape.to_dict())
    return result


def divide_gpus(num_gpus: float) -> tuple[float, int]:
    """Returns the share of a GPU that each part of an engine has, and the number of parts.

    Of 0.5 GPUs (0.5, 1), of 2 (1, 2), of 0, which is the CPU, (0, 1).
    """
    return min(num_gpus, 1.0), max(int(num_gpus), 1)


def _check_cpu(settings: VllmSettings, shape: dict[str, Any]) -> None:
    """Raises: SettingsError where vLLM has no kernel for the model, or too little memory."""
    head_size = shape.get("head_dim") or shape["hidden_size"] // shape["num_attention_heads"]
    if head_size not in _CPU_HEAD_SIZES:
        raise SettingsError(
            f"vLLM on a CPU takes heads of {', '.join(map(str, _CPU_HEAD_SIZES))} numbers, the "
            f"model's have {head_size} (the tiny model's: tiny.hidden_size "
            "over its 4 heads, or 2 below a width of 128)"
        )
    cache, free = settings.kv_cache_bytes or 0, _free_bytes()
    if cache > free:
        raise SettingsError(
            f"env_runners.kv_cache_gib {cache / _GIB:g} is more than the {free / _GIB:.2g} GiB of "
            "memory that are free: lower it, or take fewer env runners"
        )


def _free_bytes() -> int:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":") for line in lines)
    return int(fields["MemAvailable"].split()[0]) << 10
