"""The faults: one row each. `begin` brings a fault about, `end` takes it away; both are given the drive."""

from __future__ import annotations

import os
import random
import resource
import struct
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle

import cv2
from autoware_adapi_v1_msgs.msg import OperationModeState
from autoware_internal_planning_msgs.msg import VelocityLimit
from autoware_perception_msgs.msg import TrafficLightElement, TrafficLightGroup
from drive import FAULTY_NODE, HERE, REAL_NODE, Drive
from judge import sentences
from messages import CAMERAS, image, predicted_objects, route, traffic_lights
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from rclpy.serialization import serialize_message
from reflectdrive.msg import PlannerStatus
from sender import IMAGES, INFOS, SPEED_MPS, camera_mounts, unaltered
from std_msgs.msg import String

from reflectdrive_ros.ros import topics
from reflectdrive_ros.ros.bag import BagReader
from reflectdrive_ros.ros.processes import full_topic_name
from reflectdrive_ros.ros.topics import NODE_NAME

NAN, INFINITY = float("nan"), float("inf")
RECORDER_START_S = 90.0
WRITTEN_BYTES = 100_000  # a bag is written in pieces: by then the first one is there


def nothing(_drive: Drive) -> None:
    """Nothing to do."""


@dataclass(frozen=True)
class Case:
    name: str
    what: str  # one line for the table
    begin: Callable[[Drive], None]
    end: Callable[[Drive], None] = nothing
    says: str = ""  # what the diagnostics must say (regular expression); empty where nothing need be noticed
    seconds: float = 2.0  # how long the fault lasts
    settings: dict = field(default_factory=dict)
    lit_map: dict | None = None  # the car reads a map with lights: arguments of `light_maps.crossing`
    node: tuple[str, ...] = REAL_NODE
    sim_time: bool = False
    own_processes: tuple[str, ...] = ()  # sensors in processes of their own
    before: Callable[[Drive], None] = nothing  # before the fault, not measured
    after: Callable[[Drive], list[str]] = lambda _drive: []  # what must hold afterwards: complaints
    kills_node: bool = False
    restarts_node: bool = False
    traceback_allowed: bool = False


# --- processes -------------------------------------------------------------------------------------------------------


# of a car whose front axle lies behind its rear axle
VEHICLE_INFO = {"wheel_base": -2.8, "wheel_tread": 1.6, "max_steer_angle": 0.6}
VEHICLE_INFO |= {"front_overhang": 0.9, "rear_overhang": 0.9, "left_overhang": 0.1, "right_overhang": 0.1}


def start_with_wrong_vehicle(drive: Drive) -> None:
    """The node once more, with a vehicle_info that makes no car, as Autoware's launch files hand it on."""
    drive.kill(drive.process)
    start_s = time.perf_counter()
    words = [word for name, value in VEHICLE_INFO.items() for word in ("-p", f"{name}:={value}")]
    drive.process = drive.launch("-p", "strict_start:=false", *words)
    drive.wait_for(
        lambda: any("vehicle_info" in text for _, text in sentences(drive, start_s, INFINITY)), "nothing said"
    )


def start_with_right_vehicle(drive: Drive) -> None:
    drive.kill(drive.process)
    drive.start()


SECOND = "/planning/second"


def start_second_node(drive: Drive) -> None:
    """Another planner in a namespace of its own that hears the same sensors."""
    names_read = [topic.name for topic in topics.inputs(drive.config) if topic.name.startswith("~")]
    words = [word for name in names_read for word in ("-r", f"{name}:={full_topic_name(name)}")]
    drive.others.append(drive.launch(*words, namespace=SECOND))
    drive.wait_for(lambda: any(SECOND in hardware for _, hardware in statuses(drive)), "the second node did not start")


def statuses(drive: Drive) -> set[tuple[str, str]]:
    """(name, hardware id) of every status in the diagnostics of both nodes, which is the full name of the node."""
    received = list(drive.harness.received["diagnostics"])
    return {(status.name, status.hardware_id) for _, message in received for status in message.status}


def are_told_apart(drive: Drive) -> list[str]:
    """No name of a status is that of both nodes."""
    pairs = statuses(drive)
    shared = {name for name, hardware in pairs if SECOND not in hardware} & {
        name for name, hardware in pairs if SECOND in hardware
    }
    return [f"both nodes have a status '{min(shared)}'"] if shared else []


# --- messages --------------------------------------------------------------------------------------------------------


def without(*keys: str) -> Callable[[Drive], None]:
    return lambda drive: drive.sender.keys.difference_update(keys)


def with_(*keys: str) -> Callable[[Drive], None]:
    return lambda drive: drive.sender.keys.update(keys)


def altered(alteration) -> Callable[[Drive], None]:
    return lambda drive: setattr(drive.sender, "alter", alteration)


def mend(drive: Drive) -> None:
    drive.sender.alter = unaltered


def lossy():
    chance = random.Random(0)
    return lambda _key, message: () if chance.random() < 0.3 else (message,)


def shuffled():
    """Every third message is held back and sent after the next one of its kind, every other one is sent twice."""
    delayed, count = {}, {}

    def alter(key, message):
        count[key] = count.get(key, 0) + 1
        if count[key] % 3 == 0 and key not in delayed:
            delayed[key] = message
            return ()
        late = delayed.pop(key, None)
        twice = (message, message) if count[key] % 2 else (message,)
        return twice if late is None else (*twice, late)

    return alter


def frozen():
    first_data = {}

    def alter(key, message):
        if key in IMAGES:
            message.data = first_data.setdefault(key, message.data)
        return (message,)

    return alter


def resized():
    count = iter(range(10**9))
    images = [
        array("B", cv2.imencode(".jpg", image(k, width=16 + 40 * k, height=9 + 23 * k))[1].tobytes()) for k in range(8)
    ]

    def alter(key, message):
        if key in IMAGES:
            message.data = images[next(count) % len(images)]
        return (message,)

    return alter


def not_a_number(message):
    """The message with NaN in every float field, wherever it is."""
    for name, kind in message.get_fields_and_field_types().items():
        value = getattr(message, name)
        if kind in ("float", "double"):
            setattr(message, name, NAN)
        elif kind.startswith(("float", "double", "sequence<float", "sequence<double")):
            setattr(message, name, type(value)("d", [NAN] * len(value)) if isinstance(value, array) else value * NAN)
        elif isinstance(value, list):
            for inner in value:
                if hasattr(inner, "get_fields_and_field_types"):
                    not_a_number(inner)
        elif hasattr(value, "get_fields_and_field_types"):
            not_a_number(value)
    return message


def spoiled(*keys: str):
    return lambda key, message: (not_a_number(message) if key in keys else message,)


def prepare(key: str, make: Callable[[], object]) -> Callable[[Drive], None]:
    """A large message that `send_prepared` sends in place of those of a key, with their stamps. It is serialised once:
    this process must not be what is slow."""

    def serialise(drive: Drive) -> None:
        whole = bytearray(serialize_message(make()))

        def alter(sent_key, message):
            if sent_key != key:
                return (message,)
            stamp = message.stamp if key == "lights" else message.header.stamp
            struct.pack_into("<iI", whole, 4, stamp.sec, stamp.nanosec)  # it begins with its stamp
            return (bytes(whole),)

        drive.prepared = alter

    return serialise


def send_prepared(drive: Drive) -> None:
    drive.sender.alter = drive.prepared


def crowd():
    """Ten thousand objects."""
    rows = [(400.0 + 6.0 * (k % 100), 10.0 + 3.0 * (k // 100), 0.0, 1.0, 4.5) for k in range(10_000)]
    return predicted_objects(0.0, *rows)


def long_route(drive: Drive) -> None:
    drive.long_route = bytes(serialize_message(route([(-20.0 + 0.02 * k, 0.0) for k in range(100_000)])))


def off_route_by(left_m: float) -> Callable[[Drive], None]:
    """Localisation tells that the car is elsewhere."""
    return lambda drive: setattr(drive.sender, "left_m", left_m)


def other_route(left_m: float = 0.0, turned: bool = False) -> Callable[[Drive], None]:
    """A route on another road, or against the direction of the car."""
    line = [(float(x), left_m) for x in range(-20, 1900)]
    return lambda drive: drive.latch(route(line[::-1] if turned else line))


def stood_off_its_route(drive: Drive) -> list[str]:
    """From the first sentence of the route to the last, no plan but the stop plan was sent."""
    sources = [(OFF_ROUTE in status.reason, status.source) for _, status in list(drive.harness.received["status"])]
    off = [index for index, (is_off, _) in enumerate(sources) if is_off]
    during = {source for _, source in sources[off[0] : off[-1] + 1]} if off else set()
    return [] if during == {PlannerStatus.SOURCE_STOP} else [f"plans of the sources {sorted(during)} off the route"]


def limit(speed_mps: float) -> Callable[[Drive], None]:
    return lambda drive: drive.harness.inputs["max_velocity"].publish(VelocityLimit(max_velocity=speed_mps))


def flickering():
    """Red, unknown, green and no group at all, in turn."""
    colours = cycle((TrafficLightElement.RED, TrafficLightElement.UNKNOWN, TrafficLightElement.GREEN, None))

    def alter(key, message):
        if key == "lights":
            colour = next(colours)
            for group in message.traffic_light_groups:
                group.elements[0].color = TrafficLightElement.UNKNOWN if colour is None else colour
            if colour is None:
                message.traffic_light_groups = []
        return (message,)

    return alter


def many_lights():
    """Ten thousand lights, those of the map's first among them."""
    message = traffic_lights(0.0)
    (own,) = message.traffic_light_groups
    others = [TrafficLightGroup(traffic_light_group_id=10**6 + k, elements=own.elements) for k in range(10_000)]
    message.traffic_light_groups = [own, *others]
    return message


LIT_MAP = {"inputs__drivable_type": "map"}  # the settings of a car that reads Autoware's map from its topic
LINE_AHEAD_M, LINE_NEAR_M = 100.0, 38.0  # the stop line when its map is sent, and when the fault begins
NOT_OBEYED = "a plan crosses the stop line of a red light"


def red_light_ahead(drive: Drive) -> None:
    """A map with a light that is red, until the plans stop at its line and the line is near."""
    from light_maps import crossing  # needs lanelet2, as only this case does
    from map_archives import archive

    drive.line_m = SPEED_MPS * drive.driven_s() + LINE_AHEAD_M
    file = drive.folder / "map.osm"
    file.write_text(crossing(along_x=(-20.0, drive.line_m + 2.0, 1900.0), right_y=-1.75))
    drive.map = archive(file)
    send_map(drive, drive.map)
    drive.sender.alter = red
    drive.wait_for(lambda: SPEED_MPS * drive.driven_s() > drive.line_m - LINE_NEAR_M, "the car does not get on")
    drive.light_red_s = time.perf_counter()


def red(key, message):
    if key == "lights":
        for group in message.traffic_light_groups:
            group.elements[0].color = TrafficLightElement.RED
    return (message,)


def send_map(drive: Drive, data: bytes) -> None:
    from map_archives import map_message

    drive.harness.inputs["map"].publish(map_message(data))


def repair_map(drive: Drive) -> None:
    send_map(drive, drive.map)
    mend(drive)
    drive.light_green_s = time.perf_counter()


def stops_at_the_line(drive: Drive) -> list[str]:
    """No plan during the fault has its rear axle beyond the line."""
    plans = [
        message
        for at, message in list(drive.harness.received["trajectory"])
        if drive.light_red_s <= at <= drive.light_green_s
    ]
    furthest_m = max((point.pose.position.x for plan in plans for point in plan.points), default=drive.line_m + 1.0)
    return [] if furthest_m < drive.line_m else [f"{NOT_OBEYED}, by {furthest_m - drive.line_m:.1f} m"]


def flicker_mode(drive: Drive) -> None:
    """Ten times a second another hand takes the wheel."""
    modes = cycle((OperationModeState.STOP, OperationModeState.AUTONOMOUS))

    def alter(key, message):
        if key == "acceleration":
            tell_mode(drive, next(modes))
        return (message,)

    drive.sender.alter = alter


def tell_mode(drive: Drive, mode: int) -> None:
    enabled = mode == OperationModeState.AUTONOMOUS
    drive.harness.inputs["operation_mode"].publish(OperationModeState(mode=mode, is_autoware_control_enabled=enabled))


def end_flicker(drive: Drive) -> None:
    mend(drive)
    tell_mode(drive, OperationModeState.AUTONOMOUS)


def instruct(text: str) -> Callable[[Drive], None]:
    return lambda drive: drive.harness.inputs["instruction"].publish(String(data=text))


# --- time ------------------------------------------------------------------------------------------------------------


def stamps_by(seconds: float) -> Callable[[Drive], None]:
    return lambda drive: setattr(drive, "stamp_shift_s", seconds)


def clock_by(seconds: float) -> Callable[[Drive], None]:
    return lambda drive: drive.clock.jump(seconds)


def pause(drive: Drive) -> None:
    drive.sender.paused = True
    drive.clock.pause()


def resume(drive: Drive) -> None:
    drive.clock.resume()
    drive.sender.paused = False


# --- the machine -----------------------------------------------------------------------------------------------------


def start_recorder(drive: Drive) -> None:
    path = os.pathsep.join([str(HERE), str(HERE.parent), str(HERE.parents[1])])
    words = [sys.executable, str(HERE / "recorder.py"), str(drive.folder / "bag")]
    with (drive.folder / "recorder.log").open("w") as output:
        drive.others.append(subprocess.Popen(words, env={**os.environ, "PYTHONPATH": path}, stderr=output))
    until = time.perf_counter() + RECORDER_START_S
    while not any(file.stat().st_size > WRITTEN_BYTES for file in (drive.folder / "bag").glob("*.mcap")):
        assert time.perf_counter() < until, "the recorder recorded nothing"
        time.sleep(0.05)


def fill_disk(drive: Drive) -> None:
    """No process of ours can make a file longer from here on: what a full disk does, without filling one."""
    for process, file in ((drive.process, drive.log), (drive.others[0], next((drive.folder / "bag").glob("*.mcap")))):
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (file.stat().st_size, resource.RLIM_INFINITY))


def empty_disk(drive: Drive) -> None:
    for process in (drive.process, drive.others[0]):
        if process.poll() is None:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def recording_is_kept(drive: Drive) -> list[str]:
    """The recorder said in one sentence what was wrong, and what it wrote before can be read."""
    recorder = drive.others[0]
    try:
        code = recorder.wait(5.0)
    except subprocess.TimeoutExpired:
        return ["the recorder did not notice that the disk is full"]
    log = (drive.folder / "recorder.log").read_text()
    complaints = [] if code == 2 and "cannot be written" in log else [f"the recorder ended with {code}: {log[-300:]}"]
    try:
        with BagReader(drive.folder / "bag") as bag:
            count = sum(1 for _ in bag.messages())
    except Exception as fault:  # whatever it is, the recording is lost
        return [*complaints, f"the bag cannot be read: {fault}"]
    return complaints if count else [*complaints, "the bag holds nothing"]


def flood(drive: Drive) -> None:
    """Five hundred requests a second to change a parameter, for as long as the drive lasts."""
    client = drive.harness.node.create_client(SetParameters, f"{NODE_NAME}/set_parameters")
    parameters = [Parameter("guard.max_speed_mps", value=50.0).to_parameter_msg()]
    drive.flooding = threading.Event()

    def ask() -> None:
        while not drive.flooding.is_set():
            client.remove_pending_request(client.call_async(SetParameters.Request(parameters=parameters)))
            time.sleep(0.002)

    threading.Thread(target=ask, daemon=True).start()


def hog(drive: Drive) -> None:
    for _ in range(os.cpu_count() or 1):
        drive.others.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))


def end_hog(drive: Drive) -> None:
    for process in drive.others:
        drive.kill(process)


# --- the table -------------------------------------------------------------------------------------------------------

SIDES = tuple(f"image:{name}" for name in CAMERAS if name != "front")
OFF_ROUTE = "its route, "  # a sentence of a car that is not on its route
MISSING = r"old, allowed|nearest is|no new image|nothing received"

CASES = (
    Case(
        "node_killed", "kill -9 of the node, then a new start",
        lambda drive: drive.kill(drive.process), Drive.start, seconds=0.5, kills_node=True,
    ),
    Case(
        "cameras_killed", "kill -9 of the cameras' process, then a new start",
        lambda drive: drive.kill(drive.sensors["cameras"]), lambda drive: drive.start_sensors("cameras"),
        MISSING, own_processes=("cameras",),
    ),
    Case(
        "odometry_killed", "kill -9 of localisation, then a new start",
        lambda drive: drive.kill(drive.sensors["odometry"]), lambda drive: drive.start_sensors("odometry"),
        "odometry: newest is", own_processes=("odometry",),
    ),
    Case("loss_30", "30 % of all messages lost", altered(lossy()), mend, seconds=4.0),
    Case("shuffled", "stamps out of order, and messages twice", altered(shuffled()), mend, seconds=4.0),
    Case("stamps_ahead_10", "all stamps 10 s ahead of the node's clock", stamps_by(10.0), stamps_by(0.0), "future"),
    Case("stamps_behind_10", "all stamps 10 s behind the node's clock", stamps_by(-10.0), stamps_by(0.0), MISSING),
    Case("clock_forward_10", "/clock and stamps jump 10 s forward", clock_by(10.0), seconds=1.0, sim_time=True),
    Case("clock_back_10", "/clock and stamps jump 10 s back", clock_by(-10.0), seconds=1.0, sim_time=True),
    Case("sim_paused", "simulated time stands still, then goes on", pause, resume, MISSING, sim_time=True),
    Case("one_camera_dead", "one camera dead", without(SIDES[0]), with_(*IMAGES), MISSING),
    Case("two_cameras_dead", "two cameras dead", without(*SIDES), with_(*IMAGES), MISSING),
    Case("three_cameras_dead", "three cameras dead", without(*IMAGES), with_(*IMAGES), MISSING),
    Case("frozen_image", "the same images again and again", altered(frozen()), mend, "frozen", seconds=3.0),
    Case("changing_size", "images of another size each time", altered(resized()), mend),
    Case("nan_odometry", "NaN in every float field of odometry", altered(spoiled("odometry")), mend, "odometry"),
    Case(
        "nan_acceleration", "NaN in every float field of acceleration",
        altered(spoiled("acceleration")), mend, "acceleration is NaN",
    ),
    Case("nan_objects", "NaN in every float field of objects", altered(spoiled("objects")), mend, "ignored|objects"),
    Case("nan_camera_info", "NaN in every float field of camera_info", altered(spoiled(*INFOS)), mend, "focal length"),
    Case(
        "nan_route", "NaN in every float field of the route",
        lambda drive: drive.latch(not_a_number(route())), Drive.latch, "route holds NaN",
    ),
    Case(
        "nan_tf_static", "NaN in every float field of /tf_static",
        lambda drive: drive.harness.inputs["tf_static"].publish(not_a_number(camera_mounts())),
    ),
    Case(
        "objects_10000", "10,000 objects",
        send_prepared, mend, "is not read", seconds=4.0, before=prepare("objects", crowd),
    ),
    Case(
        "route_100000", "a route of 100,000 points",
        lambda drive: drive.harness.inputs["route"].publish(drive.long_route), Drive.latch,
        seconds=4.0, before=long_route,
    ),
    Case(
        "engine_raises", "the planner raises an exception",
        instruct("raise"), instruct(""), "planted", node=FAULTY_NODE, traceback_allowed=True,
    ),
    Case(
        "engine_hangs", "the planner hangs for 1 s at a time",
        instruct("hang"), instruct(""), "busy", 3.0, node=FAULTY_NODE,
    ),
    Case(
        "disk_full", "the disk is full while a bag is recorded",
        fill_disk, empty_disk, seconds=15.0, before=start_recorder, after=recording_is_kept,
    ),
    Case(
        "lights_stale", "no messages of traffic lights any more",
        without("lights"), with_("lights"), "traffic_lights: newest is", 3.0, lit_map={},
    ),
    Case("lights_flicker", "a light that changes with every message", altered(flickering()), mend, lit_map={}),
    Case(
        "no_stop_lines", "a map whose lights have no stop lines",
        nothing, nothing, "have no stop line", lit_map={"stop_line": False},
    ),
    Case(
        "map_damaged", "half a map message while a red light is ahead",
        lambda drive: send_map(drive, drive.map[: len(drive.map) // 2]), repair_map,
        "the map before it stays in use", 5.0, LIT_MAP, before=red_light_ahead, after=stops_at_the_line,
    ),
    Case("limit_0", "a speed limit of 0", limit(0.0), limit(50.0)),
    Case(
        "limit_nan", "a speed limit that is not a number",
        limit(NAN), limit(50.0), "limit of nan m/s cannot be used",
    ),
    Case(
        "teleport_30", "localisation jumps 30 m to the side",
        off_route_by(30.0), off_route_by(0.0), OFF_ROUTE, after=stood_off_its_route,
    ),
    Case(
        "route_545", "a route that is 545 m away",
        other_route(545.0), Drive.latch, OFF_ROUTE, after=stood_off_its_route,
    ),
    Case(
        "route_reversed", "a route against the direction of the car",
        other_route(turned=True), Drive.latch, OFF_ROUTE, after=stood_off_its_route,
    ),
    Case(
        "goal_behind", "a route whose goal is behind the car",
        lambda drive: drive.latch(route([(float(x), 0.0) for x in range(-60, -10)])), Drive.latch,
        "past the end of its route",
    ),
    Case(
        "lights_10000", "a message with 10,000 traffic lights",
        send_prepared, mend, seconds=4.0, lit_map={}, before=prepare("lights", many_lights),
    ),
    Case("mode_flicker", "driver and planner take turns ten times a second", flicker_mode, end_flicker, seconds=4.0),
    Case(
        "vehicle_info_wrong", "a start with a vehicle_info that makes no car, then with none",
        nothing, start_with_right_vehicle, "vehicle_info: ", before=start_with_wrong_vehicle, restarts_node=True,
    ),
    Case(
        "two_nodes", "a second planner beside it, on the same sensors",
        nothing, lambda drive: drive.kill(drive.others[0]), seconds=4.0, before=start_second_node, after=are_told_apart,
    ),
    Case(
        "parameter_flood", "500 requests a second to change a parameter",
        flood, lambda drive: drive.flooding.set(), seconds=4.0,
    ),
    Case("cpu_hog", "another process on every core", hog, end_hog, seconds=4.0),
)  # fmt: skip
BY_NAME = {case.name: case for case in CASES}
