"""Tasks for the workers of a cluster."""

import os
import time
from pathlib import Path


def waits_forever(task, report):
    Path(task).write_text(str(os.getpid()))
    time.sleep(600.0)


def waits_and_is_quick(file, task, report):
    return waits_forever(file, report) if task == "slow" else task
