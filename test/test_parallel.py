"""Claims about the pool of worker processes."""

import os
import signal

import pytest

from reflectdrive_ros.infra.parallel import ATTEMPTS, map_restartable


def own_process(task, report):
    """The process that did the task; that of task 1 is killed."""
    report(0.5)
    if task == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


@pytest.mark.parametrize(("isolated", "processes", "times"), [(True, 3, ""), (False, 2, f" {ATTEMPTS} times")])
def test_a_task_whose_process_dies_fails_alone(isolated, processes, times):
    reported = []
    outcomes = map_restartable(
        [0, 1, 2, 3], own_process, 1, lambda *values: reported.append(values), portable=False, isolated=isolated
    )
    found = {outcome.task: outcome for outcome in outcomes}
    assert found[1].reason == f"its process died{times} (signal 9)"
    assert [found[task].reason for task in (0, 2, 3)] == ["", "", ""]
    assert len({found[task].result for task in (0, 2, 3)}) == processes
    assert reported.count((1, 0.5)) == (1 if isolated else ATTEMPTS)
