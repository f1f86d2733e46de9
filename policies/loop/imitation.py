"""Learning from the oracle's episodes: an adapter's warm start before RL, and algorithm `sft`.

The warm start of the built-in model is its pretraining (`models.pretrain`).
"""

import logging
import time
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path

from agentpeft.policies.checkpointing.checkpoints import write_checkpoint
from agentpeft.policies.checkpointing.reading import read_checkpoint
from agentpeft.policies.loop.curriculum import Curriculum
from agentpeft.policies.rollout.chat import make_chat
from agentpeft.policies.rollout.groups import SampleReport
from agentpeft.policies.rollout.oracle import imitated_groups, warm_start_batches
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers.learner_group import LearnerActor, LearnerGroup
from agentpeft.policies.workers.runner_group import EnvRunnerGroup

logger = logging.getLogger(__name__)
_SAYS_EVERY_S = 5.0


def warm_start(settings: Settings, run_dir: Path, learner_class: type[LearnerActor]) -> Settings:
    """Returns the settings with the warm-started adapter as their model, and as the reference.

    It is made once, in the folder `warm_start` of the run. Raises: CheckpointError if that is
    damaged, and what learning raises.
    """
    folder = run_dir / "warm_start"
    if folder.exists():
        read_checkpoint(folder)
    else:
        training = settings.training.model_copy(update={"teacher": None})  # it is not asked
        first = settings.model_copy(update={"training": training})
        with closing(LearnerGroup(first, learner_class)) as learners:
            _take_steps(learners, settings.warm_start.num_steps)
            write_checkpoint(folder, learners.call(LearnerActor.adapter_to_files))
    return settings.with_model(name=str(folder), adapter=None)


def take_warm_start_step(actor: LearnerActor) -> float:
    """Takes the next step of the adapter's warm start, and returns its loss."""
    learner = actor.learner
    if actor.lessons is None:
        chat = make_chat(learner.policy.base, learner.settings)
        actor.lessons = warm_start_batches(learner.settings, chat)
    metrics = learner.sft_update(learner.peers.of_first(partial(next, actor.lessons)))
    return metrics["train/policy_loss"]


def _take_steps(learners: LearnerGroup, num_steps: int) -> None:
    """Takes a warm start's steps, and says how it goes, every few seconds."""
    start_s = said_s = time.monotonic()
    for step in range(1, num_steps + 1):
        loss = learners.call_all(LearnerActor.call_with, take_warm_start_step)
        now_s = time.monotonic()
        if step == num_steps or now_s - said_s >= _SAYS_EVERY_S:
            line = "warm start: step %d of %d, loss %.3f, %.0f s"
            logger.info(line, step, num_steps, loss, now_s - start_s)
            said_s = now_s
    learners.call_all(LearnerActor.call_with, end_warm_start)


def end_warm_start(actor: LearnerActor) -> None:
    """Closes the environments of the warm start's batches: an actor that is killed would not."""
    lessons, actor.lessons = actor.lessons, None
    if lessons is not None:
        lessons.close()


def receive_oracle(actor: LearnerActor, first: int, num_groups: int) -> tuple[int, ...]:
    """Plays the oracle's episodes, or reads chats, from position `first` on, for the update.

    Returns the hashes of the tasks; chats have none.
    """
    learner, settings = actor.learner, actor.learner.settings
    chat, chats = make_chat(learner.policy.base, settings), settings.training.chats
    played = imitated_groups(settings.environment, chats, chat, settings.seed, first)
    actor.received = learner.peers.of_first(lambda: list(islice(played, num_groups)))
    return tuple(g.task_hash for g in actor.received if g.task_hash is not None)


class OracleBatches:
    """Batches of algorithm `sft`: the learners play the oracle's episodes themselves."""

    def __init__(
        self,
        settings: Settings,
        curriculum: Curriculum,
        runners: EnvRunnerGroup,
        learners: LearnerGroup,
    ) -> None:
        self._num_groups = settings.training.num_groups
        self._curriculum, self._runners, self._learners = curriculum, runners, learners

    def next(self) -> SampleReport:
        """Has the learners play the next positions."""
        start_s = time.perf_counter()
        positions = self._curriculum.next_positions(self._num_groups)
        self._runners.sleep()
        hashes = self._learners.call_all(
            LearnerActor.call_with, receive_oracle, positions.start, len(positions)
        )
        report = SampleReport([])
        report.task_hashes = dict(enumerate(hashes, positions.start))
        report.sample_s = time.perf_counter() - start_s
        return report

    def clear(self) -> None:
        """Nothing is under way."""
