"""What a car sends, put into inputs or a planning core instant by instant."""

from messages import CAMERAS, acceleration, camera_info, jpeg, ns, odometry, predicted_objects, route, tf_static
from scenes import Clock, config

from reflectdrive_ros.ros.inputs.snapshot import Inputs
from reflectdrive_ros.ros.planning_core import PlanningCore


def small(**settings):
    return config(cameras__width=64, cameras__height=36, planner="constant_velocity", **settings)


def once():
    """What a car sends once: input and message."""
    yield "route", route()
    yield "tf_static", tf_static()
    for camera in CAMERAS:
        yield f"info:{camera}", camera_info(camera)


def moment(seconds, cameras=CAMERAS, objects=True, shade=None, **ego):
    """Everything a car sends at one moment, likewise; images change from moment to moment."""
    yield "odometry", odometry(seconds, x=5.0 * seconds, **ego)
    yield "acceleration", acceleration(seconds)
    if objects:
        yield "objects", predicted_objects(seconds, (60.0, 0.0, 0.0, 5.0, 4.5))
    for camera in cameras:
        yield f"image:{camera}", jpeg(seconds, camera, round(10 * seconds) if shade is None else shade)


def latched(sink):
    for key, message in once():
        sink.put(key, message, 0)


def instant(sink, seconds, **what):
    for key, message in moment(seconds, **what):
        sink.put(key, message, ns(seconds))


def ready(**settings):
    inputs = Inputs(small(**settings))
    latched(inputs.store)
    return inputs


def driving(**settings):
    """A planning core that has received what a car sends once."""
    core = PlanningCore(small(**settings), Clock())
    latched(core)
    return core


def blind(planner="constant_velocity", points=None):
    """A planning core without cameras, on a straight route or one of these points."""
    core = PlanningCore(config(cameras__required=False, planner=planner), Clock())
    core.put("route", route(points), 0)
    return core


def status_of(sink, name, seconds):
    """The status of this name in the diagnostics of inputs or a planning core; None if there is none."""
    return {status.name: status for status in sink.statuses(ns(seconds))}.get(name)
