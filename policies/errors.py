"""What goes wrong in a run, other than a bad setting or the world (`SettingsError`, `EnvFault`)."""


class EngineError(RuntimeError):
    """An engine cannot serve what it was asked for: never a reason to fall back to the base."""


class DeliveryError(RuntimeError):
    """A runner did not acknowledge the adapter that was sent."""


class PlacementError(RuntimeError):
    """Ray could not place an actor in time; says what was asked and what there is."""


class CheckpointError(RuntimeError):
    """A checkpoint or an adapter cannot be written, read, or does not fit this run."""


class TrainingError(RuntimeError):
    """Learning cannot go on, as after too many updates with a non-finite loss."""


class EnvironmentBugError(TrainingError):
    """An environment raised what none may raise: its author's to mend, and never tried again."""


class WorkerLostError(TrainingError):
    """A process of the runners or the learner is gone, or does not answer."""
