"""By how much the adapters that played are behind the one that learns (`max_adapter_lag`)."""

from collections.abc import Sequence

import numpy as np

from agentpeft.policies.learning.hooks import LearnerHook
from agentpeft.policies.learning.samples import Sample
from agentpeft.policies.messages import EpisodeGroup


class AdapterLag(LearnerHook):
    """Measures the lag of each sampled token, in versions: mean and most."""

    def end_update(
        self,
        groups: Sequence[EpisodeGroup],
        samples: Sequence[Sample],  # noqa: ARG002
        version: int,
    ) -> dict[str, float]:
        """Returns the lag over all episodes that were played."""
        lags = [np.zeros(0)]
        for group in groups:
            for t in group.trajectories:
                versions = group.adapter_version if t.token_versions is None else t.token_versions
                behind = version - np.broadcast_to(versions, t.loss_mask.shape)
                lags.append(behind[t.loss_mask])
        every = np.concatenate(lags)
        mean, most = (float(every.mean()), float(every.max())) if len(every) else (0.0, 0.0)
        return {"train/adapter_lag_mean": mean, "train/adapter_lag_max": most}
