"""What is trained of a policy: a new or saved LoRA adapter (all weights: `all_weights`)."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, LoraModel, PeftModel, get_peft_model
from peft.tuners.lora import Linear as LoraLinear
from peft.tuners.lora import LoraLayer
from safetensors import SafetensorError
from safetensors.numpy import save_file
from torch import nn
from transformers import PreTrainedModel

from agentpeft.envs import SettingsError
from agentpeft.policies.delivery.version import ADAPTER_WEIGHTS
from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.messages import Bits, Floats
from agentpeft.policies.models.lora.lora_layer import RoundedOnceLinear
from agentpeft.policies.models.policy_base import PolicyBase
from agentpeft.policies.settings.config import LoraSettings

TRAINED, _REFERENCE = "default", "reference"
"""PEFT's names of the adapter that is trained, and of the one that training started from."""


class Policy(ABC):
    """Named parameters that are trained, delivered and loaded."""

    model: PeftModel | PreTrainedModel
    scaling: float
    """What an adapter's B A is multiplied by; 1 for all weights."""

    def __init__(self, base: PolicyBase, parameters: dict[str, nn.Parameter]) -> None:
        self.base, self._parameters = base, parameters
        self.probed_base: Floats | None = None
        """What the base alone says of a probe's sequences; None before the first probe."""

    def trainable_parameters(self) -> list[nn.Parameter]:
        """Returns the trained parameters, always in the same order."""
        return list(self._parameters.values())

    def adapter_weights(self) -> dict[str, Floats]:
        """Returns a float32 copy of what is trained, by the names that it is saved under."""
        return {
            name: parameter.detach().float().cpu().numpy().copy()
            for name, parameter in self._parameters.items()
        }

    def adapter_bits(self) -> dict[str, Bits]:
        """Returns the same, rounded to the nearest numbers of bfloat16."""
        return {
            name: parameter.detach().bfloat16().view(torch.uint16).cpu().numpy()
            for name, parameter in self._parameters.items()
        }

    def load_weights(self, weights: Mapping[str, Floats]) -> None:
        """Takes over weights. Raises: CheckpointError on other names or shapes."""
        _copy_weights(weights, self._parameters)

    @abstractmethod
    def reference(self) -> AbstractContextManager[None]:
        """Within it the model computes what the reference policy would; without gradients."""

    @abstractmethod
    def base_alone(self) -> AbstractContextManager[None]:
        """Within it the model computes what the base does without what is trained."""

    @abstractmethod
    def save(self, path: str | Path) -> None:
        """Writes what is trained in its own format. Raises: CheckpointError."""

    @abstractmethod
    def load(self, path: str | Path) -> None:
        """Takes over what `save` wrote. Raises: CheckpointError, SettingsError."""


class LoraPolicy(Policy):
    """A base with a LoRA adapter; only the adapter's float32 weights require gradients.

    The reference policy is the base alone, or the adapter that training started from.
    """

    def __init__(self, base: PolicyBase, model: PeftModel) -> None:
        """`model` has the adapter to train and, maybe, a frozen one to compare with."""
        super().__init__(base, adapter_parameters(model, TRAINED))
        self.model: PeftModel = model
        self._tuner = cast(LoraModel, model.base_model)
        self._config = config = cast(LoraConfig, model.peft_config[TRAINED])
        rank = config.r**0.5 if config.use_rslora else config.r
        self.scaling = float(config.lora_alpha / rank)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(f".{TRAINED}." in name)

    @contextmanager
    def reference(self) -> Iterator[None]:
        """See `Policy.reference`."""
        has_start = _REFERENCE in self.model.peft_config
        with torch.no_grad(), self.running(_REFERENCE) if has_start else self.base_alone():
            yield

    def base_alone(self) -> AbstractContextManager[None]:
        """See `Policy.base_alone`."""
        return cast(AbstractContextManager[None], self.model.disable_adapter())

    def add_adapter(self, name: str) -> dict[str, nn.Parameter]:
        """Returns the weights of a new adapter of the same shape; it is no part of the policy."""
        self.model.add_adapter(name, self._config)
        return adapter_parameters(self.model, name)

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Within it the model runs with another of its adapters, which alone gets gradients."""
        self._tuner.set_adapter(name)
        try:
            yield
        finally:
            self._tuner.set_adapter(TRAINED)

    def save(self, path: str | Path) -> None:
        """Writes the adapter in PEFT's own format. Raises: CheckpointError."""
        folder = Path(path)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._config.save_pretrained(str(folder))
            save_file(self.adapter_weights(), folder / ADAPTER_WEIGHTS, {"format": "pt"})
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"the adapter cannot be written to {folder}: {error}") from None

    def load(self, path: str | Path) -> None:
        """Takes over the weights of a saved adapter of the same base, rank and targets.

        Raises: CheckpointError if it cannot be read, SettingsError if it is of another kind.
        """
        from agentpeft.policies.models.lora.read_adapter import read_fitting_adapter

        weights = read_fitting_adapter(Path(path), self._config, self._parameters.keys())
        try:
            self.load_weights(weights)
        except CheckpointError as error:
            raise CheckpointError(f"the adapter {path}: {error}") from None


def attach_lora(
    base: PolicyBase, lora: LoraSettings, *, seed: int = 0, gradient_checkpointing: bool = False
) -> Policy:
    """Returns what is trained; a new adapter changes nothing yet.

    Where `base` comes with a trained adapter, training goes on from it and a frozen copy is the
    reference. The base itself is changed in place. Raises: SettingsError on target modules that
    the model lacks, or a trained adapter of another base, rank, alpha or other targets.
    """
    if gradient_checkpointing:
        base.model.gradient_checkpointing_enable({"use_reentrant": False})
        base.model.enable_input_require_grads()  # type: ignore[no-untyped-call]
    if not lora.use_lora:
        from agentpeft.policies.models.lora.all_weights import FullPolicy

        return FullPolicy(base)
    with torch.random.fork_rng():
        # The seed's adapter again would begin in the very subspace of the first of the others
        torch.manual_seed(seed + len(lora.orthogonal_to))
        model = _add_adapter(base, lora)
    if base.adapter_path is None:
        return LoraPolicy(base, model)
    model.add_adapter(_REFERENCE, model.peft_config[TRAINED])
    policy = LoraPolicy(base, model)
    policy.load(base.adapter_path)
    _copy_weights(policy.adapter_weights(), adapter_parameters(model, _REFERENCE))
    return policy


def _add_adapter(base: PolicyBase, lora: LoraSettings) -> PeftModel:
    targets = lora.target_modules
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]
        target_modules=targets if isinstance(targets, str) else list(targets),
    )
    try:
        model = cast(PeftModel, get_peft_model(base.model, config, adapter_name=TRAINED))
    except ValueError as error:
        reason = str(error).partition("\n")[0]
        raise SettingsError(f"lora.target_modules {targets!r}: {reason:.300}") from None
    for name, layer in base.model.named_modules():
        if isinstance(layer, LoraLayer) and layer in embeddings_of(base.model):
            raise SettingsError(
                f"lora.target_modules {targets!r} is for linear layers, and {name} is none within "
                "the model: leave out the embeddings and the output layer"
            )
    for layer in model.modules():
        if type(layer) is LoraLinear and type(layer.base_layer) is nn.Linear:
            layer.__class__ = RoundedOnceLinear
    config.base_model_name_or_path, config.revision = base.name, base.fingerprint
    return model


def adapter_parameters(model: PeftModel, adapter: str) -> dict[str, nn.Parameter]:
    """Returns an adapter's parameters, by the names that it is saved under."""
    part = f".{adapter}."
    return {n.replace(part, "."): p for n, p in model.named_parameters() if part in n}


def _copy_weights(weights: Mapping[str, Floats], parameters: Mapping[str, nn.Parameter]) -> None:
    if names := sorted(weights.keys() ^ parameters.keys()):
        side = "not in this model" if names[0] in weights else "missing"
        raise CheckpointError(f"weights do not fit: {names[0]} is {side} ({len(names)} differ)")
    for name, parameter in parameters.items():
        if weights[name].shape != tuple(parameter.shape):
            shapes = f"{weights[name].shape}, expected {tuple(parameter.shape)}"
            raise CheckpointError(f"weights do not fit: {name} has the shape {shapes}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.from_numpy(weights[name]))


def embeddings_of(network: PreTrainedModel) -> tuple[Any, Any]:
    """Returns the layers that read tokens and that score them, or what PEFT has put around them."""
    return network.get_input_embeddings(), network.get_output_embeddings()  # type: ignore[no-untyped-call]
