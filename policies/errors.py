"""What goes wrong in a run, other than a bad setting or the world (`SettingsError`, `EnvFault`)."""


class EngineError(RuntimeError):
    """An engine cannot serve what it was asked for: never a reason to fall back to the base."""


class EngineLostError(EngineError):
    """An engine that runs share has ended: no fault of the groups that were played with it."""


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


class PayloadLostError(WorkerLostError):
    """Something that was on its way to a worker went with the node that held it."""


class RayHangsError(TrainingError):
    """Ray itself does not answer in time: one of its processes is stopped or overloaded."""

    def __init__(self, what: str, limit_s: float) -> None:
        """`what` was asked of it, and took longer than `limit_s`."""
        super().__init__(
            f"Ray does not answer: {what} took longer than {limit_s:g} s, so its raylet or GCS is "
            "stopped or hangs; go on from the last checkpoint with --resume"
        )


_NO_MEMORY = (
    "can't allocate memory",  # torch's allocator for CPUs, on Linux
    "not enough memory",  # the same, elsewhere
    "bad_alloc",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "failed to map segment from shared object",  # a package's library, on import
    "Cannot allocate memory",
    "can't start new thread",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error of Python, torch or a library says that there is no memory left."""
    is_by_type = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return is_by_type or any(text in str(error) for text in _NO_MEMORY)
