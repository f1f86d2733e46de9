"""A policy of which all weights are trained (`lora.rank = 0`)."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import GenerationConfig, PreTrainedModel

from agentpeft.envs import SettingsError
from agentpeft.policies.errors import CheckpointError
from agentpeft.policies.messages import Floats
from agentpeft.policies.models.lora.attach_lora import Policy
from agentpeft.policies.models.lora.read_adapter import read_weights
from agentpeft.policies.models.policy_base import FINGERPRINT_KEY, PolicyBase, compute_fingerprint


class FullPolicy(Policy):
    """A base of which all weights are trained; saved as a whole model.

    Its "adapter" are all weights, by the model's own names. The trained weights are float32, since
    small steps would be lost in bfloat16. The base's weights are kept beside them, unchanged and in
    their own type: they are the reference policy, and the base of a delivery's canary.
    """

    scaling = 1.0

    def __init__(self, base: PolicyBase) -> None:
        """Trains the base's own parameters in place, in float32. Raises: SettingsError."""
        if base.adapter_path is not None:
            raise SettingsError(
                f"model.name {base.adapter_path} is an adapter, and lora.rank = 0 trains "
                "all weights of a whole model: merge it first (agentpeft merge)"
            )
        _check_generation_config(base)
        weights = [parameter.detach() for parameter in base.model.parameters()]
        self.model: PreTrainedModel = base.model.float()  # type: ignore[no-untyped-call]
        super().__init__(base, dict(self.model.named_parameters()))
        # Only weights of another type were copied by `float`
        self._base_weights = [w.clone() if w.dtype == torch.float32 else w for w in weights]

    @contextmanager
    def reference(self) -> Iterator[None]:
        """See `Policy.reference`. The parameters point to the base's weights until it ends.

        It must not be entered between a forward pass and its backward pass.
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

    def base_alone(self) -> AbstractContextManager[None]:
        """As `reference`."""
        return self.reference()

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
    config = model.generation_config
    try:
        if config is not None:
            config.validate(strict=True)
    except ValueError:
        ids = ("bos_token_id", "eos_token_id", "pad_token_id")
        plain = GenerationConfig(**{name: getattr(config, name) for name in ids})  # type: ignore[no-untyped-call]
        model.generation_config = plain
