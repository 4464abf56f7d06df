"""The default planner: its graphs, its configuration without a deadline, and stored scenes."""

from dataclasses import replace
from pathlib import Path

from reflectdrive_ros.core.config import Config
from reflectdrive_ros.runtime.engine import NO_DEADLINE_MS

HERE = Path(__file__).parent
SMALL = HERE.parent / "models" / "reflectdrive2_small"
GRAPHS = {"fp32": SMALL / "onnx" / "card.json", "int8": SMALL / "int8" / "card.json"}
SCENES = HERE / "data" / "scenes_val"  # `reflectdrive scenes --scenes val --count 20`
CONFIG = replace(Config(), engine=replace(Config().engine, deadline_ms=NO_DEADLINE_MS))
