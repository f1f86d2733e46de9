"""`TrainingBatches`: keeps env runners busy, and puts the learners' batches together.

With `max_adapter_lag` n the groups of n + 1 batches are asked for as a batch begins. It is made of
those that are finished, whoever played them and whenever they were asked for: those of the oldest
adapter first, then by position. So a group that takes long delays no batch but is in a later one,
as long as it is not too old by then. Without a lag there is nothing to choose: a batch is all that
was asked for.

With `in_flight_updates` no group becomes too old in play. Groups that are still in play
when a batch is learnt from no longer count towards the n + 1 batches, so that slow ones do not
starve the runners: others are asked for, up to one episode per slot plus one batch.

A group that never gets into a batch is replaced: the curriculum draws another. Such a group was
dropped, as its environment kept failing, or stale, as it became too old in play or after it. Once
more than half of a batch is dropped, none is replaced, and the batch is short; once more than half
of the groups that ended for a batch are dropped, the run ends.

A batch is done once the learners hold its groups: those whose node is lost before that are played
again. A checkpoint holds no episodes; it lists the groups that were asked for and not learnt from.
A run that is resumed plays these first, with the adapter that is restored.
"""

import logging
import time
from collections.abc import Sequence

from agentpeft.envs import Outcome
from agentpeft.policies.errors import TrainingError
from agentpeft.policies.loop.curriculum import Curriculum, count_spread
from agentpeft.policies.messages import Ref
from agentpeft.policies.rollout.groups import GroupRequest, PlayedGroup, PlayedSoFar, SampleReport
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers.learner_group import LearnerGroup
from agentpeft.policies.workers.runner_group import EnvRunnerGroup

logger = logging.getLogger(__name__)
MAX_FAILED_SHARE = 0.5
"""Of a batch's groups: where more fail, the world is down, and what is left is no fair sample."""
_MANY_TASKS = 8
"""If none of so many is short enough, hardly any is."""


def check_world(report: SampleReport) -> None:
    """Raises: TrainingError if more groups failed in their environment than is allowed.

    Also if the prompts of so many tasks, and of all that there are, leave no room for a turn.
    """
    num_failed = len(report.dropped_group_ids)
    num_groups = num_failed + len(report.adapter_versions)
    if num_failed > MAX_FAILED_SHARE * num_groups:
        raise TrainingError(
            f"{num_failed} of {num_groups} groups failed in their environment "
            f"(at most {MAX_FAILED_SHARE:g} of them may); {report.last_fault}"
        )
    ends = {(record.outcome, record.num_turns) for record in report.records}
    num_tasks = len({record.group_id for record in report.records})
    if ends == {(Outcome.CONTEXT_LIMIT, 0)}:
        problem = (
            f"of {num_tasks} tasks no prompt leaves room for an action in "
            "env_runners.max_context_tokens: raise it, or make the prompts shorter"
        )
        if num_tasks >= _MANY_TASKS:
            raise TrainingError(problem)
        logger.warning(problem)


class TrainingBatches:
    """Asks the runners for what the curriculum chooses. One batch is put together at a time."""

    def __init__(
        self,
        settings: Settings,
        curriculum: Curriculum,
        runners: EnvRunnerGroup,
        learners: LearnerGroup,
    ) -> None:
        self._settings, self._curriculum = settings, curriculum
        self._runners, self._learners = runners, learners
        self._lag, self._in_flight = settings.max_adapter_lag, settings.in_flight_updates
        self.clear()

    def next(self) -> SampleReport:
        """Waits for a batch of groups that the learners may learn from, until they have them.

        Returns the report of these, and of those that were given up meanwhile.

        Raises: TrainingError where too many groups failed, and what playing raises.
        """
        start_s = time.perf_counter()
        self._sort_out()
        self._ask_for_missing()
        while True:
            report = self._complete()
            learnt = SampleReport(self._batch)
            self._runners.sleep()  # a no-op unless set, which needs that nothing is in play now
            lost = self._learners.receive(learnt.groups)
            if not lost:
                break
            self._play_again(lost)
        report.task_hashes = learnt.task_hashes
        report.num_stale_groups = sum(not played.is_dropped for played in self._others)
        self._start_next()
        report.groups = []  # the learners have them: their nodes need not keep them any longer
        report.sample_s = time.perf_counter() - start_s
        return report

    def clear(self) -> None:
        """Has the runners give up the groups in play, and forgets all groups."""
        self._runners.give_up()
        self._under_way: set[GroupRequest] = set()
        self._finished: list[PlayedGroup] = []  # and of no batch
        self._start_next()

    def _start_next(self) -> None:
        self._batch: list[PlayedGroup] = []
        self._others: list[PlayedGroup] = []  # of this batch's time: dropped, or stale
        self._carried = set(self._under_way) if self._in_flight else set()
        self._num_wanted = self._settings.training.num_groups

    def _ask(self, requests: Sequence[GroupRequest], *, is_first: bool = False) -> None:
        self._under_way.update(requests)
        self._runners.ask(self._receive, requests, is_first=is_first)

    def _receive(self, played: PlayedGroup) -> None:
        self._under_way.remove(played.request)
        self._finished.append(played)

    def _complete(self) -> SampleReport:
        """Fills the batch; returns the report of it, and of what was set aside meanwhile.

        If the settings say so (DAPO), further groups are taken until enough of a batch have spread.
        """
        while True:
            self._fill()
            report = SampleReport([*self._batch, *self._others])
            check_world(report)
            records = [record for played in self._batch for record in played.records]
            num_missing = self._settings.training.num_groups - count_spread(records)
            more = self._curriculum.resample(num_missing)
            if not more:
                return report
            self._num_wanted += len(more)
            self._ask(more)

    def _play_again(self, lost: Sequence[Ref]) -> None:
        gone = [played for played in self._batch if any(played.group is ref for ref in lost)]
        self._batch = [played for played in self._batch if played not in gone]
        self._ask([played.request for played in gone], is_first=True)
        self._runners.counts["num_redrawn_groups"] += len(gone)
        logger.warning("groups are lost with their node: %d are played again", len(gone))

    def _ask_for_missing(self) -> None:
        self._ask(self._curriculum.next_groups(max(self._count_missing(), 0)))

    def _count_missing(self) -> int:
        """Returns how many groups are to be asked for, of n + 1 batches; in flight see above."""
        training = self._settings.training
        if self._in_flight and self._fails_too_often:
            return 0
        num_here = len(self._under_way - self._carried) + len(self._finished)
        num_missing = (self._lag + 1) * training.num_groups - num_here - len(self._batch)
        if not self._in_flight:
            return num_missing
        enough = self._runners.num_slots + training.num_groups * training.group_size
        return min(num_missing, (enough - self._runners.num_episodes_left) // training.group_size)

    def _fill(self) -> None:
        """Adds to the batch until it has as many groups as are wanted, or none are under way."""
        so_far = PlayedSoFar(self._num_wanted)
        while True:
            self._sort_out()
            if self._in_flight:
                self._ask_for_missing()
            num_free = self._num_wanted - len(self._batch)
            is_full = self._lag > 0 and num_free <= len(self._finished)  # else: waits for all
            if is_full or not self._under_way:
                self._finished.sort(key=lambda played: (played.version, played.request.group_id))
                self._batch += self._finished[:num_free]
                del self._finished[:num_free]
                return
            num_finished = len(self._finished)
            while len(self._finished) == num_finished:
                self._runners.play()
            so_far.tell(len(self._batch) + len(self._finished))

    def _sort_out(self) -> None:
        """Sets aside what cannot be learnt from, and has other groups drawn in its place."""
        oldest = self._runners.version - self._lag
        unusable = [
            played for played in self._finished if played.group is None or played.version < oldest
        ]
        self._finished = [played for played in self._finished if played not in unusable]
        for (
            played
        ) in unusable:  # one by one: so what is drawn does not depend on how many there are
            self._others.append(played)
            if not self._fails_too_often:
                self._ask(self._curriculum.refill())

    @property
    def _fails_too_often(self) -> bool:
        num_failed = sum(played.is_dropped for played in self._others)
        return num_failed > MAX_FAILED_SHARE * self._settings.training.num_groups
