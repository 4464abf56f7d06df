"""JSON schema and reference page of the settings, both generated from `core/config.py`.

    python -m reflectdrive_ros.ros.config_schema schema > config/schema.json
    python -m reflectdrive_ros.ros.config_schema page > docs/parameters.md

An editor with YAML support marks a wrong key or value if the first line of the file is
`# yaml-language-server: $schema=<path to>/schema.json`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from typing import Any

from ..core.config import (
    FIRST_POINTS,
    MODEL_BACKENDS,
    PLANNER_SEPARATOR,
    UNKNOWN_LIGHT_POLICIES,
    Config,
    Setting,
    settings,
)
from ..planning import LEARNED, PLANNERS
from .topics import OBJECT_TYPES, ROUTE_TYPES

CHOICES = {  # settings with a fixed set of strings
    "planner": (*PLANNERS, *LEARNED),
    "inputs.route_type": tuple(ROUTE_TYPES),
    "inputs.objects_type": (*OBJECT_TYPES, "none"),
    "inputs.drivable_type": ("none", "map", "grid"),
    "inputs.obstacles_type": ("none", "cloud"),
    "inputs.lights_type": ("groups", "none"),
    "lights.unknown": UNKNOWN_LIGHT_POLICIES,
    "lights.unknown_after_red": UNKNOWN_LIGHT_POLICIES,
    "scoring.form": ("pdms", "epdms"),
    "check.unchecked": ("pass", "drop"),
    "output.first_point": tuple(FIRST_POINTS),
    "model.backend": MODEL_BACKENDS,
}
PATTERNS = {"model.device": r"^(auto|cpu|cuda(:\d+)?)$"}
HEAD = """# Parameters

Made from `reflectdrive_ros/core/config.py`; `python -m reflectdrive_ros.ros.config_schema page` prints it.
Each is a key of the configuration file and a ROS parameter of the same name (`guard.max_speed_mps`). All are read-only
while the node runs: change them and restart the node. Further parameters are `config_file`, `strict_start`, and ROS's
`use_sim_time`.

`strict_start` (true; the launch files set false) decides about an unknown name in a section below, a wrong type, a
value out of range or a model that cannot be used: true ends the start with exit code 2 and one sentence, false keeps
the node running, with that sentence as an ERROR of the status `planner` in `/diagnostics`, and no plan is published.

Parameters of Autoware's `vehicle_info.param.yaml` set `vehicle.*` unless the configuration file or a parameter does.
Launch trees may give other nodes' parameters to all nodes: those whose first part (`a` of `a.b`) is no section below
are ignored and named in the log and the diagnostics. With `strict_start`, one that resembles a section is refused.

`config/reflectdrive.yaml` has the same settings as a file to copy from, `config/schema.json` as a JSON schema: with the
first line `# yaml-language-server: $schema=<path to>/schema.json`, an editor with YAML support marks wrong keys and
values."""
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def schema(config: Config) -> dict[str, Any]:
    """JSON schema (draft 7) of a configuration file; `config` holds the defaults."""
    document: dict[str, Any] = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "reflectdrive",
        "description": "Settings of reflectdrive; settings that are left out have their defaults.",
        **section(Config),
    }
    for leaf in settings(config):
        *path, key = leaf.name.split(".")
        at = document
        for part in path:
            at = at["properties"].setdefault(part, section(type(getattr(config, part))))
        at["properties"][key] = leaf_schema(leaf)
    return document


def section(kind: type) -> dict[str, Any]:
    summary = (kind.__doc__ or "").splitlines()[0]
    return {"description": summary, "type": "object", "additionalProperties": False, "properties": {}}


def leaf_schema(leaf: Setting) -> dict[str, Any]:
    keywords: dict[str, Any] = {"description": leaf.doc}
    if leaf.kind is tuple:
        keywords |= {"type": "array", "items": {"type": "string"}, "default": list(leaf.value)}
    else:
        keywords |= {"type": TYPES[leaf.kind]} if leaf.name != "planner" else {}
        keywords["default"] = leaf.value
    if leaf.low is not None:
        keywords["minimum"] = leaf.low
    if leaf.high is not None:
        keywords["maximum"] = leaf.high
    if leaf.name == "planner":
        keywords["anyOf"] = one_or_several(CHOICES["planner"])
    elif leaf.name in CHOICES:
        keywords["enum"] = list(CHOICES[leaf.name])
    if leaf.name in PATTERNS:
        keywords["pattern"] = PATTERNS[leaf.name]
    return keywords


def one_or_several(names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Schemas of a name, of names with the separator between them, and of a list of names."""
    one = "|".join(names)
    return [
        {"type": "string", "enum": list(names)},
        {"type": "string", "pattern": f"^({one})({re.escape(PLANNER_SEPARATOR)}({one}))+$"},
        {"type": "array", "items": {"type": "string", "enum": list(names)}, "minItems": 1, "uniqueItems": True},
    ]


def as_json(config: Config) -> str:
    return json.dumps(schema(config), indent=2) + "\n"


def as_markdown(config: Config) -> str:
    """Every setting in tables, one for each section."""
    lines = [HEAD]
    present = None
    for leaf in settings(config):
        name = leaf.name.split(".")[0] if "." in leaf.name else ""
        if name != present:
            present = name
            summary = (type(getattr(config, name)).__doc__ if name else "Settings outside of sections.") or ""
            lines += ["", f"## {name or 'Top level'}", summary.splitlines()[0], ""]
            lines += ["| parameter | type | default | values | meaning |", "|---|---|---|---|---|"]
        lines.append(row(leaf))
    return "\n".join(lines) + "\n"


def row(leaf: Setting) -> str:
    kind = "list of strings" if leaf.kind is tuple else leaf.kind.__name__
    default = list(leaf.value) if leaf.kind is tuple else leaf.value
    values = ""
    if leaf.low is not None and leaf.high is not None:
        values = f"{leaf.low:g} to {leaf.high:g}"
    if leaf.name in CHOICES:
        values = ", ".join(CHOICES[leaf.name])
    return f"| `{leaf.name}` | {kind} | `{json.dumps(default)}` | {values} | {leaf.doc} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("schema", "page"))
    text = as_json(Config()) if parser.parse_args().what == "schema" else as_markdown(Config())
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
