"""What is trained of a policy: a LoRA adapter (the only door to `peft`), or all weights."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal, cast
from warnings import catch_warnings

import numpy as np
import torch
from peft import (
    LoraConfig,
    LoraModel,
    PeftModel,
    PeftModelForCausalLM,
    get_peft_model,
    get_peft_model_state_dict,
    load_peft_weights,
    set_peft_model_state_dict,
)
from peft.tuners.lora import Linear as LoraLinear
from peft.tuners.lora import LoraLayer
from safetensors import SafetensorError
from safetensors.numpy import save_file
from safetensors.torch import load_file
from torch import nn
from transformers import GenerationConfig, PreTrainedModel

from agentpeft.envs import SettingsError
from agentpeft.envs.system.whole_files import making
from agentpeft.policies.delivery.version import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    PICKLED_WEIGHTS,
)
from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.messages import Bits, Floats
from agentpeft.policies.models.lora_product import lora_product
from agentpeft.policies.models.policy_base import (
    FINGERPRINT_KEY,
    PolicyBase,
    compute_fingerprint,
)
from agentpeft.policies.settings.config import LoraSettings

_TRAINED, _REFERENCE, _COMBINED = "default", "reference", "combined"
_TIES_DENSITY = 0.2
"""The share of weights that TIES keeps of each adapter, as its paper does."""
_COMPARED_OR_INERT = {
    *("r", "lora_alpha", "use_rslora", "target_modules", "base_model_name_or_path", "revision"),
    *("task_type", "peft_type", "auto_mapping", "peft_version", "inference_mode"),
    *("lora_dropout", "loftq_config", "eva_config", "corda_config", "megatron_config"),
    *("megatron_core", "runtime_config"),
}
"""What of PEFT's `LoraConfig` is compared by its value, or does nothing once there are weights."""
_ONLY_SHAPES = {
    *("alpha_pattern", "rank_pattern", "layers_to_transform", "layers_pattern"),
    *("exclude_modules", "lora_bias"),
}
"""What changes which layers have an adapter, and of which shape and scale, and nothing else."""
_NOT_MERGED = ("layer_replication", "alora_invocation_tokens", "arrow_config")
"""What PEFT computes, but does not merge, or merges into another model."""
_UNREADABLE = (OSError, SafetensorError, UnpicklingError, RuntimeError, EOFError, AttributeError)
"""What PEFT raises on a file that does not hold named tensors."""
_PLAIN_STARTS = (True, False, "gaussian", "orthogonal", "eva")
"""Values of `init_lora_weights` that leave the base as it is."""
_LOST_STARTS = ("pissa_niter", "corda", "loftq", "lora_ga")
"""Beginnings of those that change the base in a way that the adapter's files do not tell."""


class RoundedOnceLinear(LoraLinear):
    """A LoRA layer that rounds its bfloat16 output once, the adapter's part included.

    PEFT adds that part to an output that is rounded already, which drops whatever is less than half
    of the output's last digit: nearly all of a first step at a learning rate of 1e-5. Here the
    matrix product starts from the adapter's part, in the accumulator's float32; a bias is added
    after it. Switched off it computes likewise, so that an adapter of zeros changes nothing. In
    float32, PEFT's own sum is as good; of one adapter without dropout `lora_product` makes it.
    """

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Returns the outputs (..., out) of inputs (..., in)."""
        device, base = x.device.type, cast(nn.Linear, self.base_layer)
        is_cast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if is_cast else base.weight.dtype
        rows, names = x.flatten(0, -2), self._adapters_in_use()
        if len(names) == 1 and self._is_plain(names[0]) and dtype != torch.float16:
            layers = self.lora_A[names[0]], self.lora_B[names[0]]
            down, up = (cast(nn.Linear, each).weight for each in layers)
            own = base.weight, base.bias
            output = lora_product(rows, own, (down, up), self.scaling[names[0]], dtype)
            return output.view(*x.shape[:-1], -1)
        if dtype != torch.bfloat16 or self.merged:
            return super().forward(x, *args, **kwargs)
        change = torch.zeros((), device=x.device)
        for name in names:
            down_layer, up_layer = self.lora_A[name], self.lora_B[name]
            given = rows.to(cast(nn.Linear, down_layer).weight.dtype)
            part = up_layer(down_layer(self.lora_dropout[name](given)))
            change = change + part * self.scaling[name]
        output = torch.addmm(change.to(dtype), rows.to(dtype), base.weight.to(dtype).T)
        output = output if base.bias is None else output + base.bias.to(dtype)
        return output.view(*x.shape[:-1], -1)

    def _adapters_in_use(self) -> list[str]:
        if self.disable_adapters or self.merged:
            return []
        return [name for name in self.active_adapters if name in self.lora_A]

    def _is_plain(self, name: str) -> bool:
        """Returns whether an adapter's part is two products, and nothing else."""
        dropout = self.lora_dropout[name]
        is_dropped = dropout.training and not isinstance(dropout, nn.Identity)
        return not is_dropped and name not in self.lora_variant


class _Trained:
    """Named parameters that are trained, delivered and loaded."""

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


class LoraPolicy(_Trained):
    """A base with a LoRA adapter; only the adapter's float32 weights require gradients.

    The reference policy is the base alone, or the adapter that training started from.
    """

    def __init__(self, base: PolicyBase, model: PeftModel) -> None:
        """`model` has the adapter to train and, maybe, a frozen one to compare with."""
        super().__init__(base, _adapter_parameters(model, _TRAINED))
        self.model = model
        self._tuner = cast(LoraModel, model.base_model)
        self._config = cast(LoraConfig, model.peft_config[_TRAINED])
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(f".{_TRAINED}." in name)

    @property
    def scaling(self) -> float:
        """Alpha / rank; with rsLoRA alpha / sqrt(rank)."""
        config = self._config
        return float(config.lora_alpha / (config.r**0.5 if config.use_rslora else config.r))

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Within it the model computes what the reference policy would; without gradients."""
        has_own = _REFERENCE in self.model.peft_config
        with torch.no_grad(), self.running(_REFERENCE) if has_own else self.base_alone():
            yield

    def base_alone(self) -> AbstractContextManager[None]:
        """Within it the model computes what the base does without an adapter."""
        return cast(AbstractContextManager[None], self.model.disable_adapter())

    def add_adapter(self, name: str) -> dict[str, nn.Parameter]:
        """Returns the weights of a new adapter of the same shape; it is no part of the policy."""
        self.model.add_adapter(name, self._config)
        return _adapter_parameters(self.model, name)

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Within it the model runs with another of its adapters, which alone gets gradients."""
        self._tuner.set_adapter(name)
        try:
            yield
        finally:
            self._tuner.set_adapter(_TRAINED)

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
        folder = Path(path)
        saved, weights = _read_config(folder), read_adapter(folder)
        has_same_layers = weights.keys() == self._parameters.keys()
        _check_fits(folder, saved, self._config, has_same_layers)
        try:
            self.load_weights(weights)
        except CheckpointError as error:
            raise CheckpointError(f"the adapter {folder}: {error}") from None


class FullPolicy(_Trained):
    """A base of which all weights are trained; saved as a whole model.

    Its "adapter" are all weights, by the model's own names. The trained weights are float32, since
    small steps would be lost in bfloat16. The base's weights are kept beside them, unchanged and in
    their own type: they are the reference policy, and the base of a delivery's canary.
    """

    scaling = 1.0

    def __init__(self, base: PolicyBase) -> None:
        """Trains the base's own parameters in place, in float32."""
        _check_generation_config(base)
        weights = [parameter.detach() for parameter in base.model.parameters()]
        self.model: PreTrainedModel = base.model.float()  # type: ignore[no-untyped-call]
        super().__init__(base, dict(self.model.named_parameters()))
        # Only weights of another type were copied by `float`
        self._base_weights = [w.clone() if w.dtype == torch.float32 else w for w in weights]

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Within it the model computes what the base did before training; without gradients.

        The parameters point to the base's weights until the block ends. It must not be entered
        between a forward pass and its backward pass.
        """
        parameters = self.trainable_parameters()
        trained = [parameter.data for parameter in parameters]
        try:
            for parameter, weight in zip(parameters, self._base_weights, strict=True):
                parameter.data = weight.float()
            with torch.no_grad():
                yield
        finally:
            for parameter, weight in zip(parameters, trained, strict=True):
                parameter.data = weight

    base_alone = reference

    def save(self, path: str | Path) -> None:
        """Writes model and tokenizer in Hugging Face's format. Raises: CheckpointError."""
        if self.base.fingerprint is not None:  # it is that of the weights before training
            self.model.config.update({FINGERPRINT_KEY: compute_fingerprint(self.model)})
        try:
            self.model.save_pretrained(path)
            self.base.tokenizer.save_pretrained(path)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"the model cannot be written to {path}: {error}") from None

    def load(self, path: str | Path) -> None:
        """Takes over the weights of a saved model. Raises: CheckpointError."""
        weights: dict[str, Floats] = {}
        for file in Path(path).glob("*.safetensors"):  # large models are saved in parts
            weights |= read_weights(file)
        self.load_weights(weights)


def _check_generation_config(base: PolicyBase) -> None:
    """Reduces one that transformers reads and refuses to write to its tokens' numbers.

    The first checkpoint would fail otherwise. Nothing else of it is used.
    """
    model = base.model
    own = model.generation_config
    if own is None:
        return
    try:
        own.validate(strict=True)
    except ValueError:
        model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
            bos_token_id=own.bos_token_id,
            eos_token_id=own.eos_token_id,
            pad_token_id=own.pad_token_id,
        )


Policy = LoraPolicy | FullPolicy


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
    if not lora.use_lora and base.adapter_path is not None:
        raise SettingsError(
            f"model.name {base.adapter_path} is an adapter, and lora.use_lora = false trains all "
            "weights of a whole model: merge it first (launch/merge.py)"
        )
    if not lora.use_lora:
        return FullPolicy(base)
    with torch.random.fork_rng():
        # The seed's adapter again would begin in the very subspace of the first of the others
        torch.manual_seed(seed + len(lora.orthogonal_to))
        model = _add_adapter(base, lora)
        if lora.use_pissa:
            if base.adapter_path is not None:
                raise SettingsError(
                    f"lora.use_pissa begins a new adapter, and model.name {base.adapter_path} is "
                    "one: to go on with it, set lora.use_pissa to false"
                )
            _begin_pissa(model)
    if base.adapter_path is None:
        return LoraPolicy(base, model)
    model.add_adapter(_REFERENCE, model.peft_config[_TRAINED])
    policy = LoraPolicy(base, model)
    policy.load(base.adapter_path)
    _copy_weights(policy.adapter_weights(), _adapter_parameters(model, _REFERENCE))
    return policy


def open_adapter(base: PolicyBase, path: str | Path, is_trusted: bool = False) -> PeftModel:
    """Returns the base, changed in place, with a saved LoRA adapter beside its weights.

    Whatever PEFT's LoRA adds is part of it: DoRA, biases, `modules_to_save`, tokens. Raises:
    SettingsError if the adapter names another base (unless `is_trusted`: it may be the same under
    another name) or cannot be restored from its files, CheckpointError if it cannot be read, or its
    tensors are not exactly those of such an adapter.
    """
    model, _ = open_adapters(base, [Path(path)], is_trusted)
    return model


def open_adapters(
    base: PolicyBase, folders: Sequence[Path], is_trusted: bool = False
) -> tuple[PeftModel, tuple[str, ...]]:
    """Returns the base, changed in place, with several adapters, and their names within PEFT.

    The first is active; a pass may name another for each row (`adapter_names`). Raises: as
    `open_adapter`; SettingsError if one of several changes more than LoRA layers.
    """
    names = (_TRAINED, *(f"other{number}" for number in range(1, len(folders))))
    configs = [_read_config(folder) for folder in folders]
    for folder, config in zip(folders, configs, strict=True):
        _check_base(base, folder, config, is_trusted)
        unusual = _find_unusual(config, LoraConfig(), _ONLY_SHAPES)
        if len(folders) > 1 and unusual:
            raise SettingsError(
                f"the adapter {folder} has {unusual}, which several adapters on one base cannot "
                "have: evaluate it alone, or merge it (agentpeft merge)"
            )
    model: PeftModel | None = None
    for name, folder, config in zip(names, folders, configs, strict=True):
        weights, config.inference_mode = read_adapter(folder), True
        if not _leaves_base(config, weights):
            for parameter in base.model.parameters():  # others of this process may have it, too
                parameter.data = parameter.data.clone()
        try:
            if model is None:
                model = PeftModelForCausalLM(base.model, config, name)
            else:
                model.add_adapter(name, config)
            _load_strictly(model, name, weights)
        except (ValueError, RuntimeError, LookupError, TypeError, ImportError, re.error) as error:
            raise CheckpointError(f"the adapter {folder} does not fit: {_shorten(error)}") from None
    if model is None:
        raise ValueError("expected at least one adapter, got none")
    return model.eval(), names


def _load_strictly(model: PeftModel, name: str, weights: Mapping[str, Floats]) -> None:
    """Loads an adapter's weights; PEFT itself only warns of what is missing, or is none of its.

    Raises: CheckpointError, and PEFT's own errors.
    """
    tensors = {key: torch.from_numpy(weight) for key, weight in weights.items()}
    result: Any = set_peft_model_state_dict(model, tensors, adapter_name=name)
    if unknown := sorted(result.unexpected_keys):
        raise ValueError(f"{unknown[0]} is not in this model (and {len(unknown) - 1} more)")
    state = model.state_dict()
    loaded = {state[key].data_ptr() for key in state.keys() - set(result.missing_keys)}
    saved = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    if missing := sorted(key for key, value in saved.items() if value.data_ptr() not in loaded):
        raise ValueError(f"its files lack {missing[0]} (and {len(missing) - 1} more)")


def _leaves_base(config: LoraConfig, weights: Collection[str]) -> bool:
    """Returns whether PEFT loads an adapter without writing into the base's weights."""
    return config.init_lora_weights in _PLAIN_STARTS and all(".lora_" in name for name in weights)


def merge_adapter(model: PeftModel) -> PreTrainedModel:
    """Returns the base, changed in place, with its adapter in the weights.

    Tensors of the base's state dict from before keep their values. Raises: CheckpointError on what
    PEFT cannot merge.
    """
    is_untied = _untie(cast(PreTrainedModel, model.get_base_model()))
    try:
        with catch_warnings(action="ignore", category=UserWarning):  # of shared embeddings
            merged: PreTrainedModel = model.merge_and_unload(safe_merge=True)
    except (ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"PEFT cannot merge this adapter: {_shorten(error)} (agentpeft evaluate plays it "
            "unmerged)"
        ) from None
    embeddings, head = _embeddings_of(merged)
    if is_untied and torch.equal(embeddings.weight, head.weight):
        merged.config.tie_word_embeddings = True
        merged.tie_weights()
    return merged


def _untie(network: PreTrainedModel) -> bool:
    """Gives the output layer a copy of the embeddings' weights, if they share them and are adapted.

    An adapter of one of the two would otherwise be merged into both, one of both twice. Returns
    whether it did.
    """
    embeddings, head = _embeddings_of(network)
    if isinstance(embeddings, nn.Embedding) and isinstance(head, nn.Linear):
        return False
    shared = {id(m.weight) for m in network.modules() if isinstance(m, nn.Embedding)}
    linear = (m for m in network.modules() if isinstance(m, nn.Linear))
    heads = [layer for layer in linear if id(layer.weight) in shared]
    for layer in heads:
        layer.weight = nn.Parameter(layer.weight.detach().clone(), requires_grad=False)
    return bool(heads)


def _embeddings_of(network: PreTrainedModel) -> tuple[Any, Any]:
    """Returns the layers that read tokens and that score them, or what PEFT has put around them."""
    return network.get_input_embeddings(), network.get_output_embeddings()  # type: ignore[no-untyped-call]


def _shorten(error: Exception) -> str:
    """Returns an error of a library in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _check_base(base: PolicyBase, folder: Path, config: LoraConfig, is_trusted: bool) -> None:
    """Raises: SettingsError if an adapter was trained on another base."""
    if not _is_base(config, folder, base.name, base.fingerprint, is_trusted):
        was = f"{config.base_model_name_or_path} ({config.revision})"
        has = f"{base.name} ({base.fingerprint})"
        is_known = bool(config.revision and base.fingerprint)
        remedy = "" if is_known else ": --same-base says that it is the same under another name"
        raise SettingsError(
            f"wrong base: the adapter {folder} was trained on {was}, not {has}{remedy}"
        )


def _is_base(
    config: LoraConfig, folder: Path, name: str, fingerprint: str | None, is_trusted: bool = False
) -> bool:
    """Returns whether `name` is the base that an adapter's config names.

    Built-in models are known by their fingerprints. A path may be meant from the working folder, or
    from the adapter's.
    """
    if config.revision and fingerprint:
        return config.revision == fingerprint
    named = Path(str(config.base_model_name_or_path)).expanduser()
    places = {named.resolve(), (folder / named).resolve()}
    is_same = name == config.base_model_name_or_path or Path(name).resolve() in places
    return is_same or is_trusted


def combine_adapters(
    base: PolicyBase, folders: Sequence[Path], kind: Literal["cat", "ties_svd"], output: Path
) -> None:
    """Writes one adapter that stands for several, by PEFT's `add_weighted_adapter`.

    "cat" is the mean of their updates, exactly, at the sum of their ranks. "ties_svd" trims each
    update to its largest fifth, elects signs, averages what agrees, and brings that to their rank.
    The base is changed in place. Source of TIES: Yadav et al. 2023, "TIES-Merging". Raises: as
    `open_adapter`; SettingsError for rsLoRA, whose scale PEFT does not carry over.
    """
    model, names = open_adapters(base, folders)
    if cast(LoraConfig, model.peft_config[_TRAINED]).use_rslora:
        raise SettingsError("adapters of lora.use_rslora cannot be combined: set it to false")
    tuner = cast(LoraModel, model.base_model)
    density = _TIES_DENSITY if kind == "ties_svd" else None
    weights = [1 / len(names) if kind == "cat" else 1.0] * len(names)
    tuner.add_weighted_adapter(list(names), weights, _COMBINED, kind, density=density)
    config = cast(LoraConfig, model.peft_config[_COMBINED])
    weights_by_name = {
        name: parameter.detach().float().cpu().numpy().copy()
        for name, parameter in _adapter_parameters(model, _COMBINED).items()
    }
    try:
        with making(output) as new:
            config.save_pretrained(str(new))
            save_file(weights_by_name, new / ADAPTER_WEIGHTS, {"format": "pt"})
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"the adapter cannot be written to {output}: {error}") from None


def _add_adapter(base: PolicyBase, lora: LoraSettings) -> PeftModel:
    lora = lora.as_saved()
    targets = lora.target_modules
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]
        lora_dropout=lora.dropout,
        use_rslora=lora.use_rslora,
        target_modules=targets if isinstance(targets, str) else list(targets),
    )
    try:
        model = cast(PeftModel, get_peft_model(base.model, config, adapter_name=_TRAINED))
    except ValueError as error:
        reason = str(error).partition("\n")[0]
        raise SettingsError(f"lora.target_modules {targets!r}: {reason:.300}") from None
    for name, layer in base.model.named_modules():
        if isinstance(layer, LoraLayer) and layer in _embeddings_of(base.model):
            raise SettingsError(
                f"lora.target_modules {targets!r} is for linear layers, and {name} is none within "
                "the model: leave out the embeddings and the output layer"
            )
    for layer in model.modules():
        if type(layer) is LoraLinear and type(layer.base_layer) is nn.Linear:
            layer.__class__ = RoundedOnceLinear
    config.base_model_name_or_path, config.revision = base.name, base.fingerprint
    return model


def _begin_pissa(model: PeftModel) -> None:
    """Raises: SettingsError on layers that have no such start."""
    from agentpeft.policies.learning.options.pissa import begin_at_principal_components

    for name, layer in model.named_modules():
        if not isinstance(layer, LoraLayer):
            continue
        if not isinstance(layer, LoraLinear):
            raise SettingsError(f"lora.use_pissa is for linear layers, and {name} is none")
        down, up = (cast(nn.Linear, each[_TRAINED]).weight for each in (layer.lora_A, layer.lora_B))
        weight = cast(torch.Tensor, layer.get_base_layer().weight)
        try:
            begin_at_principal_components(weight, down, up, layer.scaling[_TRAINED])
        except ValueError as error:
            raise SettingsError(f"lora.use_pissa: lora.rank: {name} {error}") from None


def _adapter_parameters(model: PeftModel, adapter: str) -> dict[str, nn.Parameter]:
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


def read_weights(path: Path) -> dict[str, Floats]:
    """Returns a file's weights in float32, whatever type they have. Raises: CheckpointError."""
    try:
        return {name: weight.float().numpy() for name, weight in load_file(path).items()}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


def read_adapter(folder: Path) -> dict[str, Floats]:
    """Returns an adapter's weights in float32, by the names that PEFT saves them under.

    Raises: CheckpointError, also on a weight that is no number, or of no floating-point type.
    """
    if not any((folder / name).is_file() for name in (ADAPTER_WEIGHTS, PICKLED_WEIGHTS)):
        files = ", ".join(sorted(path.name for path in folder.glob("*") if path.is_file()))
        raise CheckpointError(
            f"the adapter {folder} cannot be read: PEFT reads one {ADAPTER_WEIGHTS} or "
            f"{PICKLED_WEIGHTS}, and its files are {files or 'none':.200}: join what is in parts"
        )
    try:
        tensors = load_peft_weights(str(folder), device="cpu")
        not_floats = [name for name, tensor in tensors.items() if not tensor.is_floating_point()]
        weights: dict[str, Floats] = {n: w.float().numpy() for n, w in tensors.items()}
    except _UNREADABLE as error:
        raise CheckpointError(f"the adapter {folder} cannot be read: {_shorten(error)}") from None
    if not_floats:  # quantized, say, and without a scale
        raise CheckpointError(
            f"the adapter {folder} has {not_floats[0]} as {tensors[not_floats[0]].dtype}, and "
            "weights are floating-point numbers: save it in one of their types"
        )
    for name, weight in weights.items():
        if not np.isfinite(weight).all():
            raise CheckpointError(
                f"the adapter {folder} has NaN or infinity in {name}: its training has diverged, "
                "so take an earlier checkpoint"
            )
    return weights


def _read_config(folder: Path) -> LoraConfig:
    """Raises: CheckpointError if it cannot be read; SettingsError if this is no LoRA adapter.

    Also if it is one that its files and the base do not restore.
    """
    if not (folder / ADAPTER_CONFIG).is_file():
        raise CheckpointError(f"{folder} is no adapter: it has no {ADAPTER_CONFIG}")
    try:
        config = LoraConfig.from_pretrained(str(folder))
    except (OSError, ValueError, TypeError, KeyError, ImportError) as error:
        raise CheckpointError(
            f"{folder / ADAPTER_CONFIG} cannot be read: {_shorten(error)}"
        ) from None
    if type(config) is not LoraConfig:
        kind = type(config).__name__.removesuffix("Config")
        raise SettingsError(
            f"the adapter {folder} is of PEFT's kind {kind}, and only Lora is supported: merge it "
            "with PEFT (merge_and_unload), where that kind can be merged"
        )
    for name in _NOT_MERGED:
        if setting := getattr(config, name):
            raise SettingsError(
                f"the adapter {folder} has {name} = {setting!r:.100}, which is not supported, and "
                "cannot be merged: train one without it"
            )
    if str(config.init_lora_weights).lower().startswith(_LOST_STARTS):
        raise SettingsError(
            f"the adapter {folder} has init_lora_weights = {config.init_lora_weights!r}: it "
            "belongs to a base that its training has changed, and that its files do not hold. Save "
            "it there with save_pretrained's path_initial_model_for_weight_conversion, or merged"
        )
    return config


def _find_unusual(config: LoraConfig, own: LoraConfig, allowed: Collection[str] = ()) -> str | None:
    """Returns the first setting of an adapter beyond plain LoRA; None is none.

    What `own` has as well is plain, as is what is `allowed`.
    """
    default = LoraConfig()
    for name in sorted({field.name for field in fields(config)} - _COMPARED_OR_INERT - {*allowed}):
        setting = getattr(config, name)
        usual = [None, getattr(default, name), getattr(own, name)]
        if name == "init_lora_weights":
            usual += _PLAIN_STARTS
        if setting not in usual and setting not in ({}, []):
            return f"{name} = {setting!r:.100}"
    return None


def _check_fits(folder: Path, saved: LoraConfig, own: LoraConfig, has_same_layers: bool) -> None:
    """Raises: SettingsError with both values for the first thing that differs.

    One set of layers can be named in several ways, also by a pattern.
    """
    if unusual := _find_unusual(saved, own):
        biases = "where its layers have biases, " if saved.lora_bias else ""
        raise SettingsError(
            f"the adapter {folder} has {unusual}, which changes what it computes and is not "
            f"supported in training: {biases}merge it into its base (agentpeft merge) and start "
            "from that"
        )
    if not _is_base(saved, folder, str(own.base_model_name_or_path), own.revision):
        is_known = bool(saved.revision and own.revision)
        was, has = (c.revision if is_known else c.base_model_name_or_path for c in (saved, own))
        remedy = "" if is_known else f": if they are the same, name it so in its {ADAPTER_CONFIG}"
        raise SettingsError(
            f"the adapter {folder} has the base model {was}, this run {has}{remedy}"
        )
    compared: dict[str, Callable[[LoraConfig], object]] = {
        "rank": lambda c: c.r,
        "alpha": lambda c: c.lora_alpha,
        "use_rslora": lambda c: c.use_rslora,
    }
    if not has_same_layers:
        compared["target_modules"] = _list_targets
    for name, value in compared.items():
        if value(saved) != value(own):
            raise SettingsError(
                f"the adapter {folder} has the lora.{name} {value(saved)!s:.300}, this run "
                f"{value(own)!s:.300}: set it alike, or merge the adapter into its base (agentpeft "
                "merge) and start from that"
            )


def _list_targets(config: LoraConfig) -> object:
    """Returns the names of the layers that have an adapter, or the pattern that they match."""
    targets = config.target_modules
    return targets if isinstance(targets, str) else sorted(targets or ())
