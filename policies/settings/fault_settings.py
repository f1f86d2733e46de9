"""The settings of what happens when a part fails; RLlib's names where it has one."""

from pydantic import Field

from agentpeft.policies.settings.section import CountOrZero, Section


class FaultToleranceSettings(Section):
    """Retry limits, timeouts and delivery checks; RLlib's names where it has one.

    Restarts are counted over the whole run.
    """

    max_episode_retries: CountOrZero = 3
    """How often an episode that ended with an `EnvFault` is played again; then its group is
    dropped and counted.
    """
    max_failed_group_share: float = Field(default=0.5, ge=0, lt=1)
    """A round or evaluation of which more than this share of the groups fail in their
    environment ends the run, with the last fault.
    """
    max_skipped_updates: CountOrZero = 5
    """Steps in a row without a finite gradient; one more ends the run."""
    placement_timeout_s: float = Field(default=30.0, gt=0)
    """What Ray cannot place in time ends the run, with what was asked for and what there is.
    The run goes on without a restarted runner for which there is no place, as long as there
    are others.
    """
    max_num_env_runner_restarts: CountOrZero = 20
    """How often a runner is restarted that is gone, hangs, whose engine fails or that cannot
    prove its adapter. 0: it ends the run.
    """
    env_runner_restore_timeout_s: float = Field(default=1800.0, gt=0)
    """How long runners, or the learner, may take to start, loading the model included."""
    env_runner_health_probe_timeout_s: float = Field(default=30.0, gt=0)
    """While results are waited for, a runner or learner that does not answer a ping for so
    long is ended, and counts as gone.
    """
    ray_timeout_s: float = Field(default=60.0, gt=0)
    """How long Ray's own processes (raylet, GCS) may take to answer a call of the driver;
    then the run ends, to be resumed.
    """
    max_num_learner_restarts: CountOrZero = 3
    """How often a learner that is gone is restarted from the last checkpoint. 0: it ends the
    run.
    """
    probe_interval: CountOrZero = 1
    """At every n-th adapter version learner and engines must [agree on fixed
    tokens](delivery.md). 0: never.
    """
    max_probe_difference: float | None = Field(default=None, gt=0)
    """Largest mean difference of their log-probabilities that is still a delivery. None:
    0.001 in float32, 0.05 where a base or the learner computes in bfloat16.
    """
    min_served_effect: float = Field(default=0.8, ge=0, lt=1)
    """Share of an adapter's change that the served weights must hold, or it is no delivery.
    0: any.
    """
