"""`TrainingBatches`: keeps env runners busy, and puts the learner's batches together.

With `max_adapter_lag` n the groups of n + 1 batches are asked for at any time. A batch is made of
those that are finished, whoever played them and whenever they were asked for: those of the oldest
adapter first, then by position. So a group that takes long delays no batch but is in a later one,
as long as it is not too old by then. Without a lag there is nothing to choose: a batch is all that
was asked for.

With `in_flight_updates` no group becomes too old in play. One that is under way when a batch is
learnt from does not count among those of n + 1 batches any more, so that long ones take nothing
from the runners' work: others are asked for, until an episode for each slot and a batch's are left.

A group that never gets into a batch (dropped, as its environment kept failing; stale, as it became
too old in play or after it) is replaced: the curriculum draws another, unless more than
`fault_tolerance.max_failed_group_share` of the batch were dropped. Of more than this share of all
that was played the run ends; in between a batch is short.

A checkpoint holds no episodes, but which groups were asked for and not learnt from, finished or
not. A run that goes on from it plays these first, anew, with the adapter that is restored.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from agentpeft.policies.curriculum import Curriculum, count_spread
from agentpeft.policies.errors import TrainingError
from agentpeft.policies.messages import Ref
from agentpeft.policies.rollout.groups import GroupRequest, SampleReport
from agentpeft.policies.settings.config import Settings
from agentpeft.policies.workers.pending_samples import PendingSamples, merge_played
from agentpeft.policies.workers.runner_group import EnvRunnerGroup
from agentpeft.policies.workers.work_queue import Played

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingBatch:
    """What an iteration has of the runners: groups to learn from, and all that was played.

    `groups`, their tasks' hashes, and `requests` of all that is in the report are by position.
    """

    groups: Sequence[Ref]
    task_hashes: Sequence[int]
    requests: Sequence[GroupRequest]
    report: SampleReport
    num_stale_groups: int


def check_world(report: SampleReport, settings: Settings) -> None:
    """Raises: TrainingError if more groups failed in their environment than is allowed."""
    limit = settings.fault_tolerance.max_failed_group_share
    num_failed = len(report.dropped_group_ids)
    num_groups = num_failed + len(report.adapter_versions)
    if num_failed > limit * num_groups:
        raise TrainingError(
            f"{num_failed} of {num_groups} groups failed in their environment "
            f"(fault_tolerance.max_failed_group_share is {limit:g}); {report.last_fault}"
        )


class TrainingBatches:
    """Asks the runners for what the curriculum chooses. One batch is put together at a time."""

    def __init__(self, settings: Settings, curriculum: Curriculum, runners: EnvRunnerGroup) -> None:
        self._settings, self._curriculum, self._runners = settings, curriculum, runners
        self._lag, self._in_flight = settings.max_adapter_lag, settings.in_flight_updates
        self.clear()

    def clear(self) -> None:
        """Forgets all groups, once those in play have come to their end."""
        self._runners.give_up()
        self._samples = PendingSamples(self._runners)
        self._finished: list[Played] = []  # and of no batch
        self._batch: list[Played] = []
        self._carried: set[GroupRequest] = set()
        self._others: list[Played] = []  # those of this iteration that were given up, or are stale
        self._num_wanted = self._settings.training.num_groups

    def begin(self, version: int) -> None:
        """Asks for as many groups as may be under way beside those that are finished."""
        self._look(version)
        self._ask_for_missing()

    def complete(self, version: int) -> TrainingBatch:
        """Waits for a batch, of groups that a learner at `version` may learn from.

        If the settings say so (DAPO), further groups are taken until enough of a batch have spread.
        Raises: TrainingError where too many groups failed, and what playing raises.
        """
        while True:
            self._fill(version)
            _, report = merge_played([*self._batch, *self._others])
            check_world(report, self._settings)
            records = [record for played in self._batch for record in played.report.records]
            num_missing = self._settings.training.num_groups - count_spread(records)
            more = self._curriculum.resample(num_missing)
            if not more:
                return self._pack(report)
            self._num_wanted += len(more)
            self._samples.ask(more)

    def draw_again(self, lost: Sequence[Ref]) -> int:
        """Asks again for groups of the batch that are lost; returns how many."""
        gone = [played for played in self._batch if any(played.group is each for each in lost)]
        self._batch = [played for played in self._batch if played not in gone]
        self._samples.ask([played.request for played in gone], is_first=True)
        logger.warning("groups are lost with their node: %d are drawn again", len(gone))
        return len(gone)

    def end(self) -> None:
        """Forgets the batch, which was learnt from."""
        self._batch, self._others = [], []
        self._carried = set(self._samples.under_way) if self._in_flight else set()
        self._num_wanted = self._settings.training.num_groups

    def _look(self, version: int) -> None:
        """Takes in what has been heard of."""
        self._finished += self._samples.fetch(is_waiting=False)
        self._sort_out(version)

    def _ask_for_missing(self) -> None:
        self._samples.ask(self._curriculum.next_groups(max(self._num_missing(), 0)))

    def _num_missing(self) -> int:
        """How many groups are to be asked for, of n + 1 batches; in flight see above."""
        training = self._settings.training
        if self._in_flight and self._fails_too_often:
            return 0
        num_here = len(self._samples.under_way - self._carried) + len(self._finished)
        num_missing = (self._lag + 1) * training.num_groups - num_here - len(self._batch)
        if not self._in_flight:
            return num_missing
        enough = self._runners.num_slots + training.num_groups * training.group_size
        return min(num_missing, (enough - self._runners.num_episodes_left) // training.group_size)

    def _fill(self, version: int) -> None:
        """Adds to the batch until it has as many groups as are wanted, or none are under way."""
        while True:
            self._look(version)
            if self._in_flight:
                self._ask_for_missing()
            num_free = self._num_wanted - len(self._batch)
            is_full = self._lag > 0 and num_free <= len(self._finished)  # else: waits for all
            if is_full or not self._samples.under_way:
                self._finished.sort(key=lambda each: (each.version, each.request.group_id))
                self._batch += self._finished[:num_free]
                del self._finished[:num_free]
                return
            self._finished += self._samples.fetch()

    def _sort_out(self, version: int) -> None:
        """Sets aside what cannot be learnt from, and has other groups drawn in its place."""
        lost = [
            played
            for played in self._finished
            if played.group is None or version - played.version > self._lag
        ]
        self._finished = [played for played in self._finished if played not in lost]
        for played in lost:  # one by one: what is drawn does not depend on how many come at once
            self._others.append(played)
            if not self._fails_too_often:
                self._samples.ask(self._curriculum.refill())

    @property
    def _fails_too_often(self) -> bool:
        limit = self._settings.fault_tolerance.max_failed_group_share
        num_failed = sum(len(each.report.dropped_group_ids) for each in self._others)
        return num_failed > limit * self._settings.training.num_groups

    def _pack(self, report: SampleReport) -> TrainingBatch:
        groups, learnt = merge_played(self._batch)
        requests = [played.request for played in (*self._batch, *self._others)]
        return TrainingBatch(
            groups,
            [learnt.task_hashes[group_id] for group_id in sorted(learnt.task_hashes)],
            sorted(requests, key=lambda request: request.group_id),
            report,
            sum(not played.report.dropped_group_ids for played in self._others),
        )
