"""The settings of what happens when a part fails; RLlib's names where it has one."""

from pydantic import Field

from agentpeft.policies.settings.section import CountOrZero, Section


class FaultToleranceSettings(Section):
    """How often what may be tried again, when to give up, and what proves a delivery.

    A round of which more than `max_failed_group_share` of the groups fail in their environment ends
    the run. Restarts are counted over the whole run. `env_runner_health_probe_timeout_s` holds for
    the learner too, `ray_timeout_s` for Ray's own processes. `probe_interval` 0 never compares
    learner and engine; `max_probe_difference` is the limit of the mean |difference| of their
    log-probabilities, None: by the base's type. `min_served_effect`: how much of an adapter's
    change the weights that are served must hold.
    """

    max_episode_retries: CountOrZero = 3
    max_failed_group_share: float = Field(default=0.5, ge=0, lt=1)
    max_skipped_updates: CountOrZero = 5
    placement_timeout_s: float = Field(default=30.0, gt=0)
    max_num_env_runner_restarts: CountOrZero = 20
    env_runner_restore_timeout_s: float = Field(default=1800.0, gt=0)
    env_runner_health_probe_timeout_s: float = Field(default=30.0, gt=0)
    ray_timeout_s: float = Field(default=60.0, gt=0)
    max_num_learner_restarts: CountOrZero = 3
    probe_interval: CountOrZero = 1
    max_probe_difference: float | None = Field(default=None, gt=0)
    min_served_effect: float = Field(default=0.8, ge=0, lt=1)
