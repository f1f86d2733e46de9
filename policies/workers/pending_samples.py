"""`PendingSamples`: groups that were asked for, and those of them that are finished."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from agentpeft.policies.messages import Ref
from agentpeft.policies.rollout.groups import GroupRequest, SampleReport
from agentpeft.policies.workers.work_queue import Played

if TYPE_CHECKING:
    from agentpeft.policies.workers.runner_group import EnvRunnerGroup


class PendingSamples:
    """Groups under way, and those that are finished and nobody has fetched."""

    def __init__(self, runners: "EnvRunnerGroup") -> None:
        self._runners = runners
        self._finished: list[Played] = []
        self.under_way: set[GroupRequest] = set()

    def ask(self, requests: Sequence[GroupRequest], *, is_first: bool = False) -> None:
        """Asks for groups, to be played after all others that wait, or before them."""
        self.under_way.update(requests)
        self._runners.ask(self, requests, is_first=is_first)

    def receive(self, played: Played) -> None:
        """Takes a group from the runner that has played it."""
        self.under_way.remove(played.request)
        self._finished.append(played)

    def fetch(self, *, is_waiting: bool = True) -> list[Played]:
        """Returns what is finished; waits for a group if none is, and any is under way.

        Without `is_waiting`, only what has been heard of. Raises: TrainingError, DeliveryError, and
        what playing raises.
        """
        while is_waiting and self.under_way and not self._finished:
            self._runners.play()
        finished, self._finished = self._finished, []
        return finished

    def result(self) -> tuple[list[Ref], SampleReport]:
        """Waits for all groups; returns as `merge_played`. Raises: as `fetch`."""
        played: list[Played] = []
        while self.under_way or self._finished:
            played += self.fetch()
        return merge_played(played)


def merge_played(played: Iterable[Played]) -> tuple[list[Ref], SampleReport]:
    """Returns the whole groups by position, and one report; its seconds are the slowest runner's.

    `adapter_versions` of the report are in the groups' order.
    """
    ordered = sorted(played, key=lambda each: each.request.group_id)
    by_runner: dict[int, list[SampleReport]] = {}
    for each in ordered:
        by_runner.setdefault(each.runner, []).append(each.report)
    parts = [SampleReport.merge(reports, is_in_turn=True) for reports in by_runner.values()]
    whole = [each for each in ordered if each.group is not None]
    versions = tuple(each.version for each in whole)
    report = replace(SampleReport.merge(parts), adapter_versions=versions)
    return [each.group for each in whole], report
