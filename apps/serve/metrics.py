"""What `/metrics` tells, in Prometheus's text format."""

from contextlib import AbstractContextManager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_STEP_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0)


class ServerMetrics:
    """Counts of one server; every method may be called from any thread."""

    def __init__(self) -> None:
        """All are zero."""
        self._registry = CollectorRegistry()
        names = ["environment"]
        self.sessions = Gauge(
            "agentpeft_sessions", "Sessions that are open.", registry=self._registry
        )
        self.environments = Gauge(
            "agentpeft_environments",
            "Environments that exist; each may hold a sandbox or a database.",
            names,
            registry=self._registry,
        )
        self.episodes = Counter(
            "agentpeft_episodes",
            "Episodes that ended, by how.",
            [*names, "outcome"],
            registry=self._registry,
        )
        self.faults = Counter(
            "agentpeft_faults",
            "Faults of the world in an environment.",
            names,
            registry=self._registry,
        )
        self.refused = Counter(
            "agentpeft_refused",
            "What was refused or closed by a limit, by which.",
            ["reason"],
            registry=self._registry,
        )
        self._steps = Histogram(
            "agentpeft_step_seconds",
            "Seconds that an environment took for an action.",
            names,
            buckets=_STEP_BOUNDS_S,
            registry=self._registry,
        )

    def timing_step(self, environment: str) -> AbstractContextManager[object]:
        """Adds the time that the block takes to the steps of an environment."""
        return self._steps.labels(environment).time()

    def to_text(self) -> bytes:
        """Returns all of it as Prometheus reads it."""
        return generate_latest(self._registry)
