"""What the driver makes of the groups that its runners have played."""

from agentpeft.policies.rollout.groups import GroupRequest, PlayCounts, PlayedGroup, SampleReport


def make_played(group_id, runner, env_s, counts, is_whole=True):
    return PlayedGroup(
        request=GroupRequest(group_id, 4),
        version=7 + group_id,
        group=f"episodes of group {group_id}" if is_whole else None,
        records=(),
        is_dropped=not is_whole,
        is_left_out=False,
        task_hash=100 + group_id,
        counts=counts,
        last_fault="" if is_whole else f"fault of group {group_id}",
        env_s=env_s,
        runner=runner,
    )


def test_groups_of_several_runners_are_one_report_by_position():
    report = SampleReport(
        [
            make_played(2, 0, 2.0, PlayCounts(num_faults=1, num_sampled_tokens=10)),
            make_played(1, 1, 2.5, PlayCounts(num_faults=4, num_retries=3), is_whole=False),
            make_played(0, 0, 1.0, PlayCounts(num_sampled_tokens=5)),
        ]
    )
    assert report.groups == ["episodes of group 0", "episodes of group 2"]
    assert report.adapter_versions == (7, 9)
    assert report.task_hashes == {0: 100, 2: 102}
    assert (report.dropped_group_ids, report.last_fault) == ((1,), "fault of group 1")
    assert report.counts == PlayCounts(num_faults=5, num_retries=3, num_sampled_tokens=15)
    assert report.env_s == 3.0  # runner 0's: the two play side by side


def test_no_groups_are_an_empty_report():
    report = SampleReport([])
    assert report.groups == [] and report.counts == PlayCounts() and report.env_s == 0.0
