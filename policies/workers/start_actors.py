"""Starts actors: in processes of their own, by Ray, or one in the driver's."""

from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers.actors import Actor, Actors, ActorSpec


def start_actors(spec: ActorSpec, settings: Settings) -> Actors:
    """Returns running actors; with `num_env_runners` 0 a single one, an object in this process.

    Its calls are over when they return, so nothing overlaps (a lag, or several learners, needs
    Ray); a runner whose engine fails is restarted in place. Raises: PlacementError, and what
    making an actor raises.
    """
    if settings.env_runners.num_env_runners == 0:
        from agentpeft.policies.workers.inline_actors import InlineActors

        return InlineActors(spec, settings)
    from agentpeft.policies.workers.ray_actors import RayActors

    return RayActors(spec, settings)


class StartedActor(Actor):
    """An actor whose class starts all of its kind."""

    @classmethod
    def start_all(cls, spec: ActorSpec, settings: Settings) -> Actors:
        """Returns running actors, as `start_actors`; a subclass may run them in another way."""
        return start_actors(spec, settings)
