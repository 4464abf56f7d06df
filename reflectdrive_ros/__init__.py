"""reflectdrive: on-vehicle planning with planners that correct their own plans."""

import os
import signal
import sys

__version__ = "0.1.0"

# While a program of ours imports its libraries, Ctrl-C ends it without a traceback: exit code 130 in a shell.
# `main` sets its own handlers.
_program = os.path.basename(sys.argv[0]) if sys.argv else ""
if (
    _program in ("-m", "reflectdrive", "planner", "world")
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, signal.SIG_DFL)
