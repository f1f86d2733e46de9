"""A round of samples under way: `PendingSamples`, and the share of it that each runner has."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agentpeft.policies.messages import Ref
from agentpeft.policies.rollout.groups import GroupRequest, SampleReport

if TYPE_CHECKING:
    from agentpeft.policies.workers.runner_group import EnvRunnerGroup


@dataclass(frozen=True)
class Share:
    """One runner's share of a round: its requests, and references to its report and groups.

    `generation` counts the runner's replacements before it was asked.
    """

    runner: int
    generation: int
    requests: Sequence[GroupRequest]
    report: Ref
    groups: Sequence[Ref]


class PendingSamples:
    """A round of samples under way."""

    def __init__(self, runners: "EnvRunnerGroup", requests: Sequence[GroupRequest]) -> None:
        """Deals the requests out in turn."""
        self._runners, self._requests, step = runners, requests, runners.num_runners
        self._shares = [
            runners.ask(runner, requests[runner::step])
            for runner in range(min(step, len(requests)))
        ]

    def result(self) -> tuple[list[Ref], SampleReport]:
        """Waits, and returns the whole groups in the requests' order, and one report.

        `adapter_versions` of the report are in the groups' order. Raises: TrainingError,
        DeliveryError, and what playing raises.
        """
        reports: list[SampleReport] = []
        whole: dict[int, tuple[Ref, int]] = {}
        for index, asked in enumerate(self._shares):
            share, report = self._runners.finish(asked)
            self._shares[index] = share
            reports.append(report)
            versions, dropped = iter(report.adapter_versions), set(report.dropped_group_ids)
            for request, group in zip(share.requests, share.groups, strict=True):
                if request.group_id not in dropped:
                    whole[request.group_id] = group, next(versions)
        ordered = [whole[r.group_id] for r in self._requests if r.group_id in whole]
        versions_in_order = tuple(version for _, version in ordered)
        report = replace(SampleReport.merge(reports), adapter_versions=versions_in_order)
        return [group for group, _ in ordered], report

    def draw_again(self, lost: Sequence[Ref]) -> None:
        """Asks again for each share with one of the `lost` groups; `result` then has it."""
        for index, share in enumerate(self._shares):
            if any(group is each for group in share.groups for each in lost):
                self._shares[index] = self._runners.ask_again(share)
