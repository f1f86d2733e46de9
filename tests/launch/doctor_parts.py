"""What the doctor's tests share."""

from agentpeft.launch.checking.machine_checks import Machine
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.settings.toml import with_overrides

GPU = ("learners.num_gpus_per_learner=1",)


def settings_of(*overrides):
    return Settings(**with_overrides({}, overrides))


def faults(check, *overrides, **changes):
    """Returns what is wrong, in one text, and whether the config cannot run."""
    found = list(check(Machine(settings_of(*overrides), **changes)))
    wrong = [f for f in found if f.remedy]
    return "\n".join(f"{f.name}: {f.text}" for f in wrong), any(f.is_fault for f in wrong)
