"""What a run needs of the machine: one check a subject, each with what to do about its faults."""

import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, distributions, requires
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

from huggingface_hub import get_token, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from packaging.requirements import Requirement
from safetensors import SafetensorError, safe_open

from agentpeft.envs import DataError, EnvFault, SettingsError
from agentpeft.envs.tasks.hub import ask_hub
from agentpeft.policies.checkpointing.reading import check_policy
from agentpeft.policies.delivery.adapter_files import PICKLED_WEIGHTS, read_base_name
from agentpeft.policies.delivery.version import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from agentpeft.policies.errors import CheckpointError, EnvironmentBugError
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.named_files import find_path

_WHEELS_OF_TORCH = ("torchvision", "torchaudio", "torchcodec")
_SHOWN = ("torch", "transformers", "peft", "ray", "gymnasium", "vllm")


@dataclass(frozen=True)
class Finding:
    """What a check says: all is well without a `remedy`; a fault keeps the config from running."""

    name: str
    text: str
    remedy: str = ""
    is_fault: bool = False


@dataclass(frozen=True)
class Machine:
    """What is looked at: a config's settings, where packages are, and where files go."""

    settings: Settings
    search: list[str] = field(default_factory=lambda: list(sys.path))
    shared_memory: Path = Path("/dev/shm")  # noqa: S108 (it is only measured)
    output: Path = Path()
    min_free_mib: int = 512
    address: str | None = None
    """The Ray cluster to join; None: RAY_ADDRESS, or none."""

    def version(self, package: str) -> str:
        """Returns the version that is installed, or an empty text."""
        installed = distributions(name=package, path=self.search)
        return next((found.version for found in installed), "")

    @property
    def cluster(self) -> str:
        """The address of the Ray cluster to join, or an empty text."""
        return self.address or os.environ.get("RAY_ADDRESS", "")


Check: TypeAlias = Callable[[Machine], Iterator[Finding]]


def check_packages(machine: Machine) -> Iterator[Finding]:
    """Versions that the config needs, and wheels that do not go together."""
    settings = machine.settings
    runners = settings.env_runners
    asked = {
        "vllm": runners.engine == "vllm" and runners.shared_engines is None,
        "quantize": settings.model.is_in_4_bits,
        "wandb": "wandb" in settings.output.loggers,
    }
    extras = ["train", *(extra for extra, is_asked in asked.items() if is_asked)]
    try:
        needed = [Requirement(text) for text in requires("agentpeft") or ()]
    except PackageNotFoundError:
        needed = []  # used from its folder
    for need in needed:
        name, marker = need.name, need.marker
        if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in extras):
            continue
        version = machine.version(name) or machine.version(f"{name}-cpu")  # vLLM's for CPUs
        if not version or not need.specifier.contains(version, prereleases=True):
            text = f"{need.name} {version or 'is missing'}, needed is {need.specifier or 'any'}"
            at_least = [limit for limit in need.specifier if limit.operator.startswith(">")]
            is_old = not version or not all(limit.contains(version) for limit in at_least)
            remedy = f"pip install 'agentpeft[{','.join(extras)}]'"
            remedy += " (without a GPU: make vllm)" if name == "vllm" else ""
            yield Finding("packages", text, remedy, is_old)
    for other in _WHEELS_OF_TORCH:
        pair = machine.version("torch"), machine.version(other)
        if all(pair) and ("+cpu" in pair[0]) != ("+cpu" in pair[1]):
            text = f"{other} {pair[1]} beside torch {pair[0]}: transformers cannot be imported"
            yield Finding("packages", text, f"pip uninstall {other}", True)
    versions = ", ".join(f"{name} {machine.version(name) or '-'}" for name in _SHOWN)
    yield Finding("packages", f"Python {sys.version.split()[0]}, {versions}")


def check_gpu(machine: Machine) -> Iterator[Finding]:
    """As many GPUs as the config asks for; those of a cluster that is joined are Ray's to count."""
    settings = machine.settings
    runners, learners = settings.env_runners, settings.learners
    asked = runners.num_gpus_per_env_runner * max(1, runners.num_env_runners)
    asked += learners.num_gpus_per_learner * learners.num_learners
    if not asked or machine.cluster:
        yield Finding("gpu", f"asked for: {asked:g}")
        return
    try:
        import torch  # as slow to import as the whole look, so only where it is needed
    except ImportError as error:
        yield Finding("gpu", f"torch cannot be imported ({error})", "see packages", True)
        return
    num_gpus, build = torch.cuda.device_count(), torch.version.cuda or "none"
    text = f"the config asks for {asked:g} GPU(s), and torch (CUDA: {build}) sees {num_gpus}"
    remedy = (
        "install NVIDIA's driver and PyTorch's build for its CUDA (nvidia-smi names both), or set "
        "learners.num_gpus_per_learner=0 env_runners.num_gpus_per_env_runner=0"
    )
    yield Finding("gpu", text, remedy if num_gpus < asked else "", num_gpus < asked)


def check_disk(machine: Machine) -> Iterator[Finding]:
    """A folder that can be written, room in it for checkpoints, and for Ray's objects."""
    folder = _find_folder(machine.output / machine.settings.experiment)
    if problem := _find_write_problem(folder):
        remedy = "set output.dir to a folder of yours"
        yield Finding("disk", f"output.dir: {problem}", remedy, True)
        return
    free = {path: shutil.disk_usage(path).free >> 20 for path in (folder, machine.shared_memory)}
    if free[folder] < machine.min_free_mib:
        text = (
            f"{free[folder]} MiB free in {folder}, for checkpoints {machine.min_free_mib} at least"
        )
        yield Finding("disk", text, "make room, or set output.dir", True)
    uses_ray = machine.settings.env_runners.num_env_runners > 0
    if uses_ray and free[machine.shared_memory] < machine.min_free_mib:
        text = f"{free[machine.shared_memory]} MiB free in {machine.shared_memory}: Ray gets slow"
        yield Finding("shared memory", text, "give more (docker run --shm-size=2g)")
    yield Finding("disk", ", ".join(f"{path}: {mib} MiB free" for path, mib in free.items()))


def _find_folder(path: Path) -> Path:
    """Returns a path, or the folder above it in which it would be made."""
    return next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())


def _find_write_problem(folder: Path) -> str:
    try:
        TemporaryDirectory(dir=folder).cleanup()
    except OSError as error:
        return f"cannot write into {folder}: {error.strerror}"
    return ""


def check_ray(machine: Machine) -> Iterator[Finding]:
    """A cluster that answers, and an authentication that can work."""
    if machine.settings.env_runners.num_env_runners == 0:
        yield Finding("ray", "not used: env_runners.num_env_runners is 0")
        return
    address = machine.cluster
    source = f"--address {address}" if machine.address else f"RAY_ADDRESS={address}"
    mode = os.environ.get("RAY_AUTH_MODE", "")
    if mode not in ("", "token", "disabled"):
        text = f"RAY_AUTH_MODE is {mode!r}"
        yield Finding("ray", text, "set it to token or disabled, or unset it", True)
    if mode == "token" and address and not _has_ray_token():
        text = "RAY_AUTH_MODE is token, and there is none"
        yield Finding("ray", text, "ray get-auth-token --generate, the same on all nodes", True)
    port = address.rpartition(":")[2]
    if address not in ("", "auto", "local") and not port.isdigit():
        text = f"{source} has no port"
        yield Finding("ray", text, f"name one, as in {address}:6379, or leave it out", True)
    if port.isdigit() and not _answers(address.rpartition("/")[2]):
        text = f"no cluster answers at {source}"
        yield Finding("ray", text, "start it, or leave it out for a local one", True)
    yield Finding("ray", f"address {address or 'local'}, authentication {mode or 'unset'}")


def _has_ray_token() -> bool:
    path = os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token"
    return bool(os.environ.get("RAY_AUTH_TOKEN")) or Path(path).is_file()


def _answers(address: str) -> bool:
    """Returns whether gRPC is spoken there; with TLS, whether somebody listens.

    A client that joins what listens and says nothing would wait for minutes.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=3.0).close()
    except (OSError, OverflowError):  # nobody there, no such host, no such port
        return False
    if os.environ.get("RAY_USE_TLS", "0") != "0":
        return True
    import grpc

    # Ray's own connections take no proxy either
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=3.0)
        except grpc.FutureTimeoutError:
            return False
    return True


def check_model(machine: Machine) -> Iterator[Finding]:
    """Local models and adapters are whole; those of the hub are in the cache, or may be fetched."""
    settings = machine.settings
    adapters = [("lora.orthogonal_to", folder) for folder in settings.lora.orthogonal_to]
    for setting, adapter in (("model.adapter", settings.model.adapter), *adapters):
        if adapter is not None and (problem := _find_adapter_problem(Path(adapter).expanduser())):
            remedy = "name an adapter's folder in PEFT's format (a run's is checkpoints/…/adapter)"
            yield Finding("model", f"{setting} {adapter!r} {problem}", remedy, True)
    if settings.model.adapter is not None:
        yield from _compare_rank(settings)
    yield _look_at_model("model.name", settings.model.name)
    if settings.training.teacher and not settings.training.is_taught_by_endpoint:
        yield _look_at_model("training.teacher", settings.training.teacher)


def _look_at_model(setting: str, name: str) -> Finding:
    if name == "tiny":
        return Finding("model", "built in")
    folder = Path(name.partition(":")[2] or name).expanduser()
    if not (folder.exists() or name.startswith(("/", ".", "~"))):
        return _find_on_hub(setting, name.partition(":")[2] or name)
    if not folder.is_dir():
        remedy = "name a hub id, or the folder of a whole model"
        return Finding("model", f"{setting} {name!r} is no folder", remedy, True)
    wanted = {"weights": "*.safetensors"}
    if not (folder / ADAPTER_CONFIG).is_file():
        wanted |= {"config": "config.json", "tokenizer": "tokenizer*"}
    missing = [part for part, pattern in wanted.items() if not any(folder.glob(pattern))]
    if missing:
        text = f"{setting} {name!r} has no {' nor '.join(missing)}"
        return Finding("model", text, "name a hub id, or the folder of a whole model", True)
    return Finding("model", name)


def _compare_rank(settings: Settings) -> Iterator[Finding]:
    """Whether the adapter that a run starts from has its rank; the learner compares the rest."""
    path = Path(str(settings.model.adapter)).expanduser() / ADAPTER_CONFIG
    with suppress(OSError, ValueError, AttributeError):
        rank = json.loads(path.read_bytes()).get("r")
        if isinstance(rank, int) and rank != settings.lora.rank:
            text = f"model.adapter {settings.model.adapter!r} has the rank {rank}"
            yield Finding("model", text, f"set lora.rank={rank}", True)


def _find_adapter_problem(folder: Path) -> str:
    """Returns what keeps an adapter from being loaded, as far as its files' beginnings tell."""
    if not folder.is_dir():
        return "is no folder"
    is_pickled = (folder / PICKLED_WEIGHTS).is_file() and not (folder / ADAPTER_WEIGHTS).is_file()
    for name in (ADAPTER_CONFIG, PICKLED_WEIGHTS if is_pickled else ADAPTER_WEIGHTS):
        if not (folder / name).is_file():
            return f"has no {name}"
    try:
        check_policy(folder)
        kind = json.loads((folder / ADAPTER_CONFIG).read_bytes()).get("peft_type")
        if is_pickled:  # its names are not at its beginning
            return "" if kind == "LORA" else f"is no LoRA adapter (peft_type {kind!r})"
        with safe_open(folder / ADAPTER_WEIGHTS, "np") as weights:
            num_weights = len(weights.keys())
    except CheckpointError as error:
        return f"cannot be used: {error}"
    except (OSError, ValueError, AttributeError, SafetensorError) as error:
        return f"cannot be read ({' '.join(str(error).split()):.200})"
    if kind != "LORA" or not num_weights:
        return f"is no LoRA adapter (peft_type {kind!r}, {num_weights} weights)"
    return ""


def _find_on_hub(setting: str, name: str) -> Finding:
    """Returns whether a hub's model is in the cache, or may be fetched."""
    remedy = f"fetch it where there is a network (hf download {name}), or name a folder"
    try:
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return Finding("model", f"{name}, from the cache")
    except HFValidationError:
        return Finding("model", f"{setting} {name!r} is no folder, nor a hub id", remedy, True)
    token = get_token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    status = ask_hub(f"/api/models/{name}/revision/main", headers)  # what a download asks first
    if status in (401, 403, 404):
        text = f"{name!r} is no folder, and cannot be had from the Hugging Face hub"
        return Finding("model", text, "correct the name, or log in (hf auth login)", True)
    if status is not None:
        return Finding("model", f"{name}, from the hub")
    reason = "HF_HUB_OFFLINE is set" if os.environ.get("HF_HUB_OFFLINE") else "no hub answers"
    return Finding("model", f"{name} is not in the cache, and {reason}", remedy, True)


def check_environment(machine: Machine) -> Iterator[Finding]:
    """Every environment of the config begins an episode: data, server, daemon and image are there.

    So a container that it needs is started, and stopped.
    """
    from agentpeft.policies.rollout.environments import EnvPool, call_environment

    settings = machine.settings
    sections = [("environment", kwargs) for kwargs in settings.stage_kwargs]
    sections += [("warm_start", kwargs) for kwargs in settings.warm_start_kwargs]
    sections.append(("evaluation", settings.held_out_kwargs))
    for section, kwargs in sections:
        try:
            pool = EnvPool(settings.environment.id, kwargs, (settings.seed,))
            env = call_environment(partial(pool.begin, 0, pool.task_at(0)))[0]
            pool.discard(env)
        except (DataError, EnvFault, EnvironmentBugError, SettingsError, OSError) as error:
            text = " ".join(str(error).split())
            yield Finding(section, text, f"fix it, or change {section}'s settings", True)
        else:
            yield Finding(
                section, f"{settings.environment.id} {kwargs.get('database', '')}".strip()
            )


def check_memory(machine: Machine) -> Iterator[Finding]:
    """The run's processes fit into this machine, by an estimate; a cluster is not looked at.

    What the config needs of GPUs and models must be there.
    """
    from agentpeft.launch.costs.resources import compare_memory

    if machine.cluster:
        return
    try:
        lacking = compare_memory(machine.settings)
    except SettingsError as error:
        text, _, remedy = str(error).removeprefix("memory: ").partition(": ")
        yield Finding("memory", text, remedy or "change the settings", True)
        return
    yield Finding("memory", *(lacking or ("what is estimated fits",)))


def check_dtype(machine: Machine) -> Iterator[Finding]:
    """A CPU that is to compute in bfloat16 has instructions for it."""
    from agentpeft.policies.models.load import multiplies_bfloat16

    settings = machine.settings
    learners, runners = settings.learners, settings.env_runners
    learns_here = learners.num_gpus_per_learner == 0
    runs_here = learns_here or runners.num_gpus_per_env_runner == 0
    if machine.cluster or multiplies_bfloat16():
        return
    text = "this processor has no instructions for bfloat16, and computes with it many times slower"
    if settings.model.dtype == "bfloat16" and runs_here:
        yield Finding("model", text, "set model.dtype to 'float32'")
    if learners.autocast == "bfloat16" and learns_here:
        yield Finding("learners", text, "set learners.autocast to 'auto'")


def check_engine(machine: Machine) -> Iterator[Finding]:
    """The vLLM of a run on this machine starts. What it compiles for a GPU it keeps for the run."""
    settings, start_s = machine.settings, time.monotonic()
    runners = settings.env_runners
    is_elsewhere = machine.cluster or runners.shared_engines
    if runners.engine != "vllm" or is_elsewhere or settings.is_tiny:
        return
    from agentpeft.policies.engines.vllm.start import start_vllm

    try:
        start_vllm(settings)[1].close()
    except SettingsError as error:
        yield Finding("engine", str(error), "change the settings", True)
    else:
        yield Finding("engine", f"vLLM starts in {time.monotonic() - start_s:.0f} s")


QUICK: tuple[Check, ...] = (check_packages, check_gpu, check_disk, check_ray, check_model)
"""Those that take less than a second together."""
LATE: tuple[Check, ...] = (check_memory, check_dtype, check_engine)
"""Those for machines that have the packages, GPUs and models, and memory enough."""
ALL: tuple[Check, ...] = (*QUICK, check_environment, *LATE)


def try_environments(settings: Settings) -> None:
    """Makes the environments of training, evaluation and a warm start once.

    So no fault is found after something was written, or stages were learnt.

    Raises: SettingsError, DataError or EnvFault: what making one of them raises.
    """
    from agentpeft.policies.loop.task_choice import check_frontier, count_epoch_tasks
    from agentpeft.policies.rollout.environments import EnvPool, open_stages
    from agentpeft.policies.rollout.scripted_play import opened

    environment, limit_s = settings.environment, settings.env_runners.step_timeout_s
    with ExitStack() as stack:
        with _naming("curriculum.stages" if settings.curriculum.stages else "environment.kwargs"):
            stages = [stack.enter_context(closing(stage)) for stage in open_stages(settings)]
        check_frontier(settings, stages)
        if settings.output.checkpoint_interval == "epoch":
            count_epoch_tasks(settings, stages[0])
    if settings.warm_start.num_steps and settings.warm_start_chats is None:
        for kwargs in settings.warm_start_kwargs:
            with (
                _naming("warm_start.env_kwargs"),
                opened(environment.id, kwargs),  # it has an oracle to imitate
            ):
                pass
    with _naming("evaluation.env_kwargs"):
        EnvPool(environment.id, settings.held_out_kwargs, (settings.seed,), limit_s).close()


@contextmanager
def _naming(setting: str) -> Iterator[None]:
    """Says which setting has the arguments that an environment refuses."""
    try:
        yield
    except SettingsError as error:
        if "unknown environment" in str(error) or "cannot be imported" in str(error):
            raise  # the id is wrong
        raise SettingsError(f"{setting}: {error}") from error


def try_chat(settings: Settings) -> None:
    """Reads a local model's config and tokenizer, and tries its chat template with the settings.

    What the hub has is left to the run, which fetches it. Raises: SettingsError, OSError.
    """
    from agentpeft.launch.costs.resources import naming_model, read_model_config
    from agentpeft.policies.models.saved_model import find_saved
    from agentpeft.policies.rollout.chat import open_chat

    folder = find_path(settings.model.name)
    if folder is None:
        return
    if (folder / ADAPTER_CONFIG).is_file() and find_path(read_base_name(folder)) is None:
        return
    with naming_model(settings):
        config = read_model_config(settings).get_text_config()
    stops = config.eos_token_id
    stops = stops if isinstance(stops, list) else [stops]
    open_chat(find_saved(settings.model)[1], settings, (id_ for id_ in stops if id_ is not None))


def find_faults(machine: Machine, checks: tuple[Check, ...] = QUICK) -> None:
    """Raises: SettingsError with the first fault that the checks find."""
    for check in checks:
        for finding in check(machine):
            if finding.is_fault:
                raise SettingsError(f"{finding.name}: {finding.text}; {finding.remedy}")
