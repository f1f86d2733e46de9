"""O-LoRA: a new adapter reads other directions of its layers' inputs than earlier adapters do.

The rows of an adapter's A span what it reads of a layer's input. The loss gets

    coeff * sum over layers and earlier adapters i of |A_i A^T|^2 (the squared Frobenius norm),

which is 0 where each row of A is orthogonal to each row of A_i. Then the new update B A leaves
inputs alone that lie in what the earlier ones read. The earlier adapters are frozen, and must be in
the base already for their sum to be what is trained and served.
Source: Wang et al. 2023, "Orthogonal Subspace Learning for Language Model Continual Learning",
eq. 7 and 8. Their code sums absolute values instead, whose gradient stays large up to 0.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from agentpeft.envs import SettingsError
from agentpeft.policies.delivery.version import LORA_A
from agentpeft.policies.learning.hooks import LearnerHook
from agentpeft.policies.learning.objective import Totals
from agentpeft.policies.models.lora.attach_lora import Policy
from agentpeft.policies.models.lora.read_adapter import read_adapter
from agentpeft.policies.settings.config import LoraSettings

_COEFF = 0.5  # the authors'


class Orthogonality(LearnerHook):
    """The penalty on a policy's A."""

    def __init__(self, policy: Policy, lora: LoraSettings) -> None:
        """Reads `lora.orthogonal_to`. Raises: SettingsError, CheckpointError."""
        self._pairs: list[tuple[nn.Parameter, Tensor]] = []
        """Each A, (r, in), with the rows of all earlier ones of its layer, (R, in)."""
        earlier = {folder: read_adapter(Path(folder)) for folder in lora.orthogonal_to}
        parameters = zip(policy.adapter_weights(), policy.trainable_parameters(), strict=True)
        for name, parameter in parameters:
            if not name.endswith(LORA_A):
                continue
            for folder, weights in earlier.items():
                if name not in weights or weights[name].shape[1] != parameter.shape[1]:
                    raise SettingsError(
                        f"lora.orthogonal_to: the adapter {folder} has no {name} of "
                        f"{parameter.shape[1]} columns: it is of another model, or other "
                        "lora.target_modules"
                    )
            rows = np.concatenate([weights[name] for weights in earlier.values()])
            self._pairs.append((parameter, torch.from_numpy(rows).to(parameter.device)))

    def penalize(self) -> Totals:
        """Adds the penalty's gradients to those of the policy, and returns it as totals.

        With several learners all of them add the same, after their gradients were summed.
        """
        norms = [(rows @ a.T).square().sum() for a, rows in self._pairs]
        penalty = _COEFF * torch.stack(norms).sum()
        penalty.backward()  # type: ignore[no-untyped-call]
        value = penalty.item()
        return Totals(value, sums={"orthogonality": (value, 1)})
