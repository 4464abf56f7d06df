"""Processor time in units that are the same on fast and slow machines: runs of a fixed loop of Python."""

import time


def loop_s():
    """Processor seconds of one run of the reference loop, about 15 ms on a server of 2020."""
    begin_s = time.thread_time()
    total = 0
    for k in range(200_000):
        total += k % 7
    return time.thread_time() - begin_s


def in_loops(call, prepare=lambda: (), runs=5):
    """Least processor time of `call(*prepare())` on this thread, in runs of the loop, timed in turn with the call."""
    took_s, loops_s = [], []
    for _ in range(runs):
        loops_s.append(loop_s())
        arguments = prepare()
        begin_s = time.thread_time()
        call(*arguments)
        took_s.append(time.thread_time() - begin_s)
    return min(took_s) / min(loops_s)
