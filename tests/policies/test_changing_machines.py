"""Machines that share no disk, or come and go, in processes of their own as `test_lost_nodes`."""

import pytest
from test_lost_nodes import run_tests_of

pytestmark = pytest.mark.slow


@pytest.mark.long
@pytest.mark.timeout(600)
def test_what_settings_name_reaches_machines_that_share_no_disk(bubblewrap):
    run_tests_of("own_disks.py", "not long")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_base_and_an_adapter_over_it_reach_machines_that_share_no_disk(bubblewrap):
    run_tests_of("own_disks.py", "long")


@pytest.mark.timeout(600)
def test_runners_follow_nodes_that_are_drained_and_added():
    run_tests_of("changing_nodes.py")
