"""Checks of the fields of frozen dataclasses. Each raises a ValueError: the field, what it holds, what was expected."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray


def check_array(
    owner: str, name: str, value: Any, shape: tuple[int | None, ...], dtype: Any = np.float64
) -> NDArray[Any]:
    """`value` as a read-only array of the given shape (None matches any length), finite, whole where `dtype` is.

    Raises ValueError naming `owner.name`, what it is and what was expected.
    """
    whole = np.dtype(dtype).kind in "iu"
    try:
        array = np.asarray(value, None if whole else dtype)
    except (TypeError, ValueError) as fault:  # ragged lists, strings
        raise ValueError(f"{owner}.{name} is not an array of numbers: {fault}") from None
    if whole and array.dtype.kind not in "iu" and array.size:
        raise ValueError(f"{owner}.{name} holds {array.dtype}, expected whole numbers")
    array = array.astype(dtype, copy=False)
    if array.shape != shape and (
        array.ndim != len(shape)
        or any(want is not None and have != want for have, want in zip(array.shape, shape, strict=True))
    ):
        expected = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{owner}.{name} has shape {array.shape}, expected ({expected})")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{owner}.{name} holds NaN or infinity")
    if array.flags.writeable:
        array = array.copy()
        array.flags.writeable = False
    return array


def keep_array(owner: object, name: str, shape: tuple[int | None, ...], dtype: Any = np.float64) -> None:
    """Puts `check_array` of a field in its place."""
    object.__setattr__(owner, name, check_array(type(owner).__name__, name, getattr(owner, name), shape, dtype))


def check_finite(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if not isinstance(value, Real) or not np.isfinite(float(value)):
            raise ValueError(f"{type(owner).__name__}.{name} is {value!r}, expected a finite number")


def check_positive(owner: object, *names: str) -> None:
    check_finite(owner, *names)
    for name in names:
        if not getattr(owner, name) > 0:
            raise ValueError(f"{type(owner).__name__}.{name} is {getattr(owner, name)}, expected more than 0")


def check_stamp(owner: object) -> None:
    stamp = getattr(owner, "stamp_ns")  # noqa: B009 (any of the stamped types)
    if not isinstance(stamp, Integral):  # a float would lose nanoseconds
        raise ValueError(f"{type(owner).__name__}.stamp_ns is {stamp!r}, expected whole nanoseconds")
