"""Write the Autoware interface packages that PyPI lacks, from their field lists in `fields.json`.

    python test/interfaces/generate.py            # rewrite the checked-in packages beside this file
    python test/interfaces/generate.py --layout 1.12 --out DIR

The packages are for machines without Autoware (continuous integration, laptops): same names, same fields in the
same order, so the type hashes and the bytes on the wire are Autoware's own. Where the real packages are installed,
`tools/setup` does not build these. `--layout 1.12` writes CandidateTrajectory as it was before
autoware_internal_msgs 1.14, without the turn-indicator field: both are in the field at this time.
"""

import argparse
import json
from pathlib import Path

HERE = Path(__file__).parent
PACKAGES = (
    "geographic_msgs",
    "tf2_msgs",
    "autoware_adapi_v1_msgs",
    "autoware_vehicle_msgs",
    "autoware_planning_msgs",
    "autoware_perception_msgs",
    "autoware_map_msgs",
    "autoware_internal_debug_msgs",
    "autoware_internal_planning_msgs",
)
CANDIDATE = "autoware_internal_planning_msgs/CandidateTrajectory"
LAYOUTS = {"1.15": CANDIDATE, "1.12": CANDIDATE + "@1.12"}

CMAKE = """\
cmake_minimum_required(VERSION 3.16)
project({package})
find_package(ament_cmake REQUIRED)
find_package(rosidl_default_generators REQUIRED)
{finds}
# rclpy needs messages in C and Python only; to leave C++ out halves the build
list(FILTER AMENT_EXTENSIONS_rosidl_generate_idl_interfaces EXCLUDE REGEX "_cpp:")
rosidl_generate_interfaces(${{PROJECT_NAME}}
{messages}
  DEPENDENCIES {dependencies})
ament_export_dependencies(rosidl_default_runtime)
ament_package()
"""

MANIFEST = """\
<?xml version="1.0"?>
<package format="3">
  <name>{package}</name>
  <version>{version}</version>
  <description>Fields of {package}, for machines where the real package is not installed.</description>
  <maintainer email="maintainers@reflectdrive.example">reflectdrive</maintainer>
  <license>Apache-2.0</license>
  <buildtool_depend>ament_cmake</buildtool_depend>
  <buildtool_depend>rosidl_default_generators</buildtool_depend>
{depends}
  <exec_depend>rosidl_default_runtime</exec_depend>
  <member_of_group>rosidl_interface_packages</member_of_group>
  <export><build_type>ament_cmake</build_type></export>
</package>
"""


def definition(message):
    """The text of a .msg file."""
    defaults = message.get("defaults", {})
    lines = [f"{kind} {name}={value}" for kind, name, value in message["constants"]]
    lines += [f"{kind} {name} {defaults.get(name, '')}".rstrip() for kind, name in message["fields"]]
    return "\n".join(lines) + "\n"


def write_package(package, messages, version, out):
    """One ament package with the given messages (name -> fields, constants)."""
    used = {kind.split("/")[0] for message in messages.values() for kind, _ in message["fields"] if "/" in kind}
    dependencies = sorted(used - {package}) or ["std_msgs"]
    folder = out / package
    (folder / "msg").mkdir(parents=True, exist_ok=True)
    for name, message in messages.items():
        (folder / "msg" / f"{name}.msg").write_text(definition(message))
    (folder / "CMakeLists.txt").write_text(
        CMAKE.format(
            package=package,
            finds="\n".join(f"find_package({name} REQUIRED)" for name in dependencies),
            messages="\n".join(f'  "msg/{name}.msg"' for name in sorted(messages)),
            dependencies=" ".join(dependencies),
        )
    )
    (folder / "package.xml").write_text(
        MANIFEST.format(
            package=package,
            version=version,
            depends="\n".join(f"  <depend>{name}</depend>" for name in dependencies),
        )
    )


def generate(out, layout="1.15"):
    """Write every package below `out`; `layout` picks the CandidateTrajectory (a key of LAYOUTS)."""
    fields = json.loads((HERE / "fields.json").read_text())
    fields = {**fields, CANDIDATE: fields[LAYOUTS[layout]]}
    for package in PACKAGES:
        messages = {
            full.split("/")[1]: message
            for full, message in fields.items()
            if full.startswith(package + "/") and "@" not in full
        }
        write_package(package, messages, f"{layout}.0", out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", choices=LAYOUTS, default="1.15")
    parser.add_argument("--out", type=Path, default=HERE)
    chosen = parser.parse_args()
    generate(chosen.out, chosen.layout)
