"""Typed, documented settings in frozen dataclasses, and their strict override by nested values or a YAML file.

With these functions `core/config.py` and `core/recipe_config.py` define the settings of planning, and
`training/settings.py` those of training.
"""

from __future__ import annotations

import dataclasses
import difflib
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from .documents import DocumentError, read_yaml
from .errors import UserError
from .files import path_text
from .installing import shipped


class ConfigError(UserError, ValueError):
    """A setting is wrong; the message names it, its value, the expected value and what to do."""


def setting(default: Any, doc: str, low: float | None = None, high: float | None = None, separator: str = "") -> Any:
    """A dataclass field with its description and inclusive range. A string with a `separator` may also be written as a
    list of strings, which it joins."""
    metadata = {"doc": doc, "low": low, "high": high, "separator": separator}
    if isinstance(default, tuple):
        return field(default_factory=lambda: default, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Setting:
    """One setting with its dotted name."""

    name: str
    value: Any
    kind: type
    doc: str
    low: float | None
    high: float | None


def settings(config: Any, prefix: str = "") -> Iterator[Setting]:
    """All settings of a configuration, in order of definition."""
    hints = get_type_hints(type(config))
    for entry in dataclasses.fields(config):
        value = getattr(config, entry.name)
        if dataclasses.is_dataclass(value):
            yield from settings(value, f"{prefix}{entry.name}.")
        else:
            kind = tuple if isinstance(value, tuple) else hints[entry.name]
            meta = entry.metadata
            yield Setting(prefix + entry.name, value, kind, meta["doc"], meta["low"], meta["high"])


_short = reprlib.Repr()  # a wrong value may be long, nested or contain itself
_short.maxstring = _short.maxother = 80


def _leaf(name: str, kind: type, value: Any, low: float | None, high: float | None) -> Any:
    if kind is tuple:
        if not isinstance(value, (list, tuple)) or not all(isinstance(entry, str) for entry in value):
            raise ConfigError(f"setting {name} is {_short.repr(value)}, expected a list of strings")
        return tuple(value)
    right = isinstance(value, (int, float) if kind is float else kind)
    if not right or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"setting {name} is {_short.repr(value)} ({type(value).__name__}), expected {kind.__name__}")
    if not (low is None or value >= low) or not (high is None or value <= high):
        raise ConfigError(f"setting {name} is {value}, expected {low} to {high}")
    return kind(value)


def override(config: Any, values: Mapping[str, Any], prefix: str = "") -> Any:
    """The configuration overridden by nested `values`. Raises ConfigError naming the setting and what to do."""
    if not isinstance(values, Mapping):
        section = f"section {prefix[:-1]}" if prefix else "the configuration"
        raise ConfigError(f"{section} is {_short.repr(values)}, expected settings as key: value")
    leaves = {entry.name: entry for entry in dataclasses.fields(config)}
    hints = get_type_hints(type(config))
    changed: dict[str, Any] = {}
    for key, value in values.items():
        if key not in leaves:
            if prefix == "inputs." and str(key).endswith("_max_age_s"):
                age = f"[{str(key).removesuffix('_max_age_s')}={_short.repr(value)}]"
                raise ConfigError(f"unknown setting {prefix}{key}; write inputs.max_age_s: {age}")
            near = difflib.get_close_matches(str(key), leaves, n=1, cutoff=0.5)
            hint = f"did you mean '{prefix}{near[0]}'?" if near else f"expected one of {', '.join(leaves)}"
            raise ConfigError(f"unknown setting {_short.repr(prefix + str(key))}; {hint}")
        present, meta = getattr(config, key), leaves[key].metadata
        if dataclasses.is_dataclass(present):
            changed[key] = override(present, value, f"{prefix}{key}.")
        else:
            kind = tuple if isinstance(present, tuple) else hints[key]
            if meta["separator"] and isinstance(value, (list, tuple)):
                value = meta["separator"].join(_leaf(prefix + key, tuple, value, None, None))
            changed[key] = _leaf(prefix + key, kind, value, meta["low"], meta["high"])
    return dataclasses.replace(config, **changed)


def override_dotted(config: Any, values: Mapping[str, Any]) -> Any:
    """As `override`, with names such as `guard.max_speed_mps`. A name and a prefix of it exclude each other."""
    for name in values:
        for outer in values:
            if name.startswith(f"{outer}."):
                raise ConfigError(f"'{outer}' and '{name}' are both given; give one of them")
    nested: dict[str, Any] = {}
    for name, value in values.items():
        *path, last = name.split(".")
        at = nested
        for part in path:
            at = at.setdefault(part, {})
        at[last] = value
    return override(config, nested)


def override_from_file(config: Any, path: Path) -> Any:
    """The configuration overridden by a YAML file, which may be a shipped one.

    Raises ConfigError for a file that cannot be used.
    """
    path = shipped(path)
    try:
        content = read_yaml(path)
    except FileNotFoundError:
        raise ConfigError(f"configuration file {path_text(path)} does not exist") from None
    except OSError as fault:
        raise ConfigError(f"configuration file {path_text(path)} cannot be read: {fault.strerror}") from None
    except DocumentError as fault:
        raise ConfigError(f"configuration file {path_text(path)} {fault}") from None
    try:
        return override(config, {} if content is None else content)
    except ConfigError as fault:
        raise ConfigError(f"{path}: {fault}") from None
