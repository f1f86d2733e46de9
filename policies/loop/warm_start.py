"""The warm start of an adapter: supervised steps on the oracle's episodes, before a run's RL.

That of the built-in model is its pretraining (`models.pretrain`).
"""

from contextlib import closing
from pathlib import Path

from agentpeft.policies.checkpointing.checkpoints import read_checkpoint, write_checkpoint
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers.learner_group import LearnerActor, LearnerGroup


def warm_started(
    settings: Settings, run_dir: Path, learner_class: type[LearnerActor] = LearnerActor
) -> Settings:
    """Returns the settings, with the warm-started adapter as their model if one is asked for.

    It becomes the reference too. It is made once, in the folder `warm_start` of the run. Raises:
    CheckpointError if that is damaged, and what learning raises.
    """
    num_steps, folder = settings.warm_start.num_steps, run_dir / "warm_start"
    if settings.model.name == "tiny" or num_steps == 0:
        return settings
    if folder.exists():
        read_checkpoint(folder)
    else:
        training = settings.training.model_copy(update={"teacher": None})  # it is not asked
        own = settings.model_copy(update={"training": training})
        with closing(LearnerGroup(own, learner_class)) as learners:
            learners.call_all(LearnerActor.warm_start)
            write_checkpoint(folder, learners.call(LearnerActor.adapter_to_files))
    return settings.with_model(name=str(folder), adapter=None)
