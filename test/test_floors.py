"""The import rule of the house: a module imports from its own room or from lower floors.

Read from the source with `ast`, so that an import inside a function counts too. `breaches` is shown planted breaches
first: a rule that finds nothing must be known to find something.
"""

import ast
from collections import Counter
from graphlib import CycleError, TopologicalSorter

import pytest
from sources import PACKAGE, ROOT, trees

pytestmark = pytest.mark.meta

# Rooms by floor; rooms on one floor are strangers.
FLOORS = {
    "__init__": 0,
    "pages": 0,
    "infra": 1,
    "core": 2,
    "features": 3,
    "scoring": 3,
    "model": 3,
    "maps": 4,
    "data": 4,
    "planning": 4,
    "sim": 5,
    "runtime": 5,
    "training": 6,
    "deploy": 6,
    "evaluation": 6,
    "ros": 6,
    "demo": 7,
    "egodriver": 7,
    "replay": 7,
    "dataset": 8,
    "bench": 8,
    "cli": 9,
    "__main__": 10,
}
GENERATORS = "planning.generators"

# Where a library may be imported: rooms, or single modules.
ONLY_IN = {
    "torch": ("model", "training", "deploy", "runtime.torch_backend", "runtime.torch_denoiser"),
    "torchvision": ("model", "training", "deploy", "runtime.torch_backend", "runtime.torch_denoiser"),
    "triton": ("model.token.fused_update",),
    "onnxruntime": ("runtime.ort_backend", "deploy"),
    "openvino": ("runtime.openvino_backend",),
    "tensorrt": ("runtime.trt.backend", "deploy"),
    "rclpy": ("ros", "demo", "replay.node"),
    "reflectdrive": ("ros", "demo", "replay.node"),  # our messages
    "builtin_interfaces": ("ros", "demo", "replay.node"),
    "*_msgs": ("ros", "demo", "replay.node"),
    "lanelet2": ("maps",),
    "libsumo": ("sim",),
    "sumolib": ("sim",),
    "traci": ("sim",),
    "ray": ("infra.cluster",),
    "pyarrow": ("data",),
    "fiss_planner": ("planning.peers.fiss_plus",),
    "carla_driver_interface": ("egodriver",),
    "alpasim_driver": ("egodriver",),
    "grpc": ("egodriver",),
}


def room_of(module):
    """The room of a module given without the package's name: `scoring.metrics` is in `scoring`."""
    return module.split(".")[0]


def imports_of(module, tree, is_package):
    """(line, full dotted name) of everything that a module imports, wherever it does so."""
    here = [PACKAGE, *module.split(".")] if module != "__init__" else [PACKAGE]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            up = here if is_package else here[:-1]
            base = up[: len(up) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{origin}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def library_rule(name):
    """The entry of ONLY_IN for a library, None where anyone may import it."""
    if name in ONLY_IN:
        return name
    return "*_msgs" if name.endswith("_msgs") else None


def breaches(sources):
    """One sentence per forbidden import in `sources`: module without the package's name -> (tree, is a package)."""
    sentences = []
    for module, (tree, is_package) in sources.items():
        room = room_of(module)
        if room not in FLOORS:
            sentences.append(f"{module} is in no room of the house")
            continue
        for line, name in imports_of(module, tree, is_package):
            library, *inside = name.split(".")
            if library != PACKAGE:
                rule = library_rule(library)
                if rule and room not in ONLY_IN[rule] and module not in ONLY_IN[rule]:
                    sentences.append(f"{module}:{line} imports {library}, which belongs to {', '.join(ONLY_IN[rule])}")
                continue
            target = ".".join(inside)
            # what is no room belongs to the package itself, as `from reflectdrive_ros import __version__`
            other = room_of(target) if room_of(target) in FLOORS else "__init__"
            if other != room and FLOORS[other] >= FLOORS[room]:
                sentences.append(
                    f"{module}:{line} ({room}, floor {FLOORS[room]}) imports {target} (floor {FLOORS[other]})"
                )
            is_generator = module.startswith(f"{GENERATORS}.")
            is_own = f"{target}.".startswith(f"{module}.")
            if is_generator and not is_own and f"{target}.".startswith(f"{GENERATORS}."):
                sentences.append(f"{module}:{line} imports {target}; generators do not know each other")
    return sentences


def house():
    """Every module of the package as it is on disk."""
    sources = {}
    for file, tree in trees().items():
        parts = list(file.relative_to(ROOT / PACKAGE).with_suffix("").parts)
        is_package = parts[-1] == "__init__"
        if is_package and len(parts) > 1:
            parts.pop()
        sources[".".join(parts)] = tree, is_package
    return sources


def test_the_house_stands():
    assert breaches(house()) == []


def import_graph(sources):
    """The modules that each module imports, wherever it does so: the package itself is none of them."""
    graph = {}
    for module, (tree, is_package) in sources.items():
        names = [name.removeprefix(f"{PACKAGE}.") for _, name in imports_of(module, tree, is_package)]
        graph[module] = {
            next((each for each in (name, name.rpartition(".")[0]) if each in sources), "") for name in names
        }
        graph[module] -= {"", module, "__init__"}
    return graph


def test_no_module_imports_itself_through_others():
    list(TopologicalSorter(import_graph(house())).static_order())
    circle = {"ros.a": "from ..data import b", "data.b": "def f():\n    from ..ros.a import g"}
    with pytest.raises(CycleError):
        list(TopologicalSorter(import_graph(planted(circle))).static_order())


def test_no_room_but_the_proving_ground_holds_more_than_15_percent_of_the_lines():
    lines = Counter()
    for file in trees():
        lines[file.relative_to(ROOT / PACKAGE).parts[0]] += file.read_text().count("\n")
    assert {room: count for room, count in lines.items() if room != "sim" and count > 0.15 * lines.total()} == {}


@pytest.mark.parametrize(
    ("pattern", "suffixes"),
    [("reflectdrive_ros/**/*", (".py", ".html", ".js", ".css")), ("src/*", (".cpp", ".hpp")), ("launch/*", (".py",))],
)
def test_no_file_is_longer_than_700_lines(pattern, suffixes):
    """Pages of documentation are shorter: test_docs.py."""
    files = [file for file in ROOT.glob(pattern) if file.suffix in suffixes]
    lengths = {str(file.relative_to(ROOT)): file.read_text().count("\n") for file in files}
    assert lengths
    assert {name: lines for name, lines in lengths.items() if lines > 700} == {}


def test_every_folder_is_a_package():
    """One without __init__.py is not installed."""
    assert [folder for folder in {file.parent for file in trees()} if not (folder / "__init__.py").exists()] == []


def planted(texts, is_package=False):
    return {module: (ast.parse(text), is_package) for module, text in texts.items()}


@pytest.mark.parametrize(
    ("module", "text", "complaint"),
    [
        ("infra.files", "from ..core.domain import Array", "imports core.domain.Array (floor 2)"),
        ("core.domain", "from reflectdrive_ros.planning.guard import check", "imports planning.guard.check (floor 4)"),
        ("scoring.scorer", "from ..features import inputs", "imports features.inputs (floor 3)"),
        ("features", "from .model import layers", "imports model.layers (floor 3)"),
        ("planning.guard", "from ..data import scene", "imports data.scene (floor 4)"),
        ("planning.guard", "def f():\n    from ..runtime.engine import Engine", "planning.guard:2 (planning, floor 4)"),
        ("evaluation.closed_loop", "from .. import ros", "imports ros (floor 6)"),
        ("ros.node", "from ..training.rl import train", "imports training.rl.train (floor 6)"),
        ("ros.node", "from ..__main__ import main", "imports __main__.main (floor 10)"),
        ("runtime.engine", "importlib.import_module('reflectdrive_ros.ros.node')", "imports ros.node"),
        ("planning.generators.drivefine", "from .reflectdrive import generate", "generators do not know each other"),
        ("planning.generators.reflectdrive", "from . import drivefine", "generators do not know each other"),
        ("planning.generators.reflectdrive", "from .. import generators", "generators do not know each other"),
        ("features", "import torch.nn as nn", "features:1 imports torch, which belongs to model"),
        ("runtime.engine", "if True:\n    import torch", "runtime.engine:2 imports torch"),
        ("runtime.ort_backend", "from tensorrt import Runtime", "imports tensorrt"),
        ("runtime.ort_backend", "import openvino", "imports openvino, which belongs to runtime.openvino_backend"),
        ("__main__", "from rclpy.node import Node", "imports rclpy"),
        ("evaluation.closed_loop", "from nav_msgs.msg import Path", "imports nav_msgs, which belongs to ros"),
        ("maps.osm", "from reflectdrive.msg import PlannerStatus", "imports reflectdrive, which belongs to ros"),
        ("ros.inputs", "def f():\n    import lanelet2", "imports lanelet2, which belongs to maps"),
        ("infra.parallel", "def f():\n    import ray", "infra.parallel:2 imports ray, which belongs to infra.cluster"),
        ("utils.angles", "", "utils.angles is in no room of the house"),
    ],
)
def test_a_planted_breach_is_found(module, text, complaint):
    (sentence,) = breaches(planted({module: text}))
    assert complaint in sentence


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("core.geometry", "from .domain import Array\nfrom ..infra import files\nimport numpy as np"),
        ("planning.guard", "from ..core import geometry\nfrom ..scoring import scorer\nfrom . import planner"),
        ("planning.pipeline", "from .generators import drivefine\nfrom .generators.reflectdrive import SPEC"),
        ("planning.generators.reflectdrive", "from ..guard import check\nfrom ...core import geometry"),
        ("runtime.torch_backend", "import torch\nfrom ..model.layers import Block"),
        ("runtime.trt.backend", "import tensorrt"),
        ("ros.node", "import rclpy\nfrom nav_msgs.msg import Path\nfrom reflectdrive.msg import PlannerStatus"),
        ("training.rl", "import torch\nfrom ..runtime import engine"),
        ("sim.world", "import sumolib, libsumo"),
        ("__main__", "from . import __version__\nfrom .ros import node\nfrom .training import rl"),
        ("evaluation.closed_loop", "from reflectdrive_ros import __version__\nfrom .. import __version__"),
    ],
)
def test_what_the_rule_allows_is_no_breach(module, text):
    assert breaches(planted({module: text})) == []


def test_a_package_counts_its_dots_from_itself():
    texts = {"scoring": "from .scorer import score\nfrom ..core import domain"}
    assert breaches(planted(texts, is_package=True)) == []
    assert len(breaches(planted({"scoring": "from ..planning import guard"}, is_package=True))) == 1
