"""How many inputs the tests of test_fuzz*.py try, and how many each has tried."""

import functools
import os
from collections import Counter

from hypothesis import HealthCheck, settings

LONG = "REFLECTDRIVE_FUZZ_INPUTS" in os.environ
INPUTS = int(os.environ.get("REFLECTDRIVE_FUZZ_INPUTS", "1750"))
SHARES = 70  # the tests of these files share the inputs; those that are cheap take several shares
TRIED: Counter[str] = Counter()  # inputs by test


def fuzzed(shares=1):
    """So many shares of all inputs; others each time in the long run, the same ones otherwise."""
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    long = settings(
        max_examples=max(5, shares * INPUTS // SHARES),
        derandomize=not LONG,
        database=None,
        suppress_health_check=checks,
    )

    def decorate(test):
        inner = test.hypothesis.inner_test

        @functools.wraps(inner)
        def counted(*args, **inputs):
            TRIED[test.__name__] += 1
            return inner(*args, **inputs)

        test.hypothesis.inner_test = counted
        return long(test)

    return decorate
