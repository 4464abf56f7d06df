"""A drive through the proving ground as a recording: the core drives it here, without ROS processes, bit for bit the
same on every run. Also what every command that opens a world has in common."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.config import Config
from ..infra import arguments
from ..planning.inputs import needs_cameras, reads_images
from ..ros import topics
from ..ros.planning_core import PlanningCore
from ..runtime.engine import NO_DEADLINE_MS
from . import world_messages
from .recordings import DemoRecording, RecordedMessage, RecordedTopic

if TYPE_CHECKING:
    from ..sim.world import World

TICK_S = 0.1


def add_world_arguments(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--seed", type=arguments.SEED, default=6, help="of the town, its traffic and its appearance")
    parser.add_argument("--town", default="", help="name of a generated town (default: from the seed)")
    parser.add_argument(
        "--map",
        type=Path,
        metavar="FILE",
        help="drive in this map instead: Lanelet2 (.osm) or OpenDRIVE (.xodr, .xodr.gz)",
    )


@contextmanager
def open_world(args: argparse.Namespace, config: Config) -> Iterator[World]:
    """The world that the arguments ask for. Raises one of WORLD_FAULTS, or ConfigError for inputs that it has not."""
    world_messages.check_inputs(config.inputs)
    from ..sim.world import World, WorldOptions  # SUMO is needed from here on, not before

    with World(WorldOptions(seed=args.seed, town=args.town, map_file=args.map), config.vehicle) as world:
        yield world


def camera_rig(config: Config) -> Sequence[Any]:
    """The proving ground's cameras at the planner's image size; none if it needs none."""
    from ..sim.render import camera

    return (
        camera.rig(config.cameras.width, config.cameras.height) if needs_cameras(config) or reads_images(config) else ()
    )


def world_recording(world: World, config: Config, seconds: float) -> DemoRecording:
    """The messages on the vehicle's topics while the configured planner drives; can be iterated once."""
    car = world_messages.car_topics(config)
    table = tuple(RecordedTopic(topic.name, topic.type, topic.is_latched) for topic in car)
    names = {topic.key: topic.name for topic in car}
    read = {topic.key for topic in topics.inputs(config)}
    ticks = max(1, round(seconds / TICK_S))
    rig = camera_rig(config)

    def messages() -> Iterator[RecordedMessage]:
        patient = replace(config, engine=replace(config.engine, deadline_ms=NO_DEADLINE_MS))
        core = PlanningCore(patient, time.perf_counter)
        sender = world_messages.Sender(config.output.map_frame)
        for tick in range(ticks):
            stamp_ns, images = world.stamp_ns, world.render_images(rig) if rig else ()
            introduced = [] if tick else list(sender.introduction(world, images))
            for key, message in (*introduced, *sender.messages(world), *sender.images(images)):
                if key in names:
                    if key in read:
                        core.put(key, message, stamp_ns)
                    yield RecordedMessage(names[key], stamp_ns, message)
            core.wait_idle()
            report = core.step(stamp_ns).report
            world.step(None if report is None else report.plan, TICK_S)

    latched = sum(topic.latched for topic in table)
    count = ticks * (len(table) - latched) + latched + len(rig)
    return DemoRecording(world.road_map.name, table, count, messages)
