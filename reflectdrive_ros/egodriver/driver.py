"""An engine behind the driver contract: one engine a session, one network for all.

A session that fails, or whose planner takes longer than the deadline, gets the stop plan and a sentence in the log;
other sessions go on. Sessions plan one at a time: the network is shared.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from typing import Any

import cv2
import numpy as np
from carla_driver_interface.driver import BaseDriver, DriveContext, DriveResult, SessionState
from carla_driver_interface.geometry import Pose
from carla_driver_interface.geometry import Trajectory as RigTrajectory
from carla_driver_interface.protocol import TrafficLightState

from ..core import geometry
from ..core.config import Config
from ..core.domain import Array, CameraFrame, EgoState, Observation, PlanSource, StepReport, StopLines, TrafficLights
from ..features.cameras import Camera
from ..features.images import PAIR_INTERVAL_S, PAIR_TOLERANCE_S
from ..features.reprojection import View, black, plan_views, reproject
from ..planning.planner import Networks
from ..ros.inputs.route import command_along
from ..runtime.engine import Engine, camera_rig
from . import convert
from .convert import BadInput

log = logging.getLogger(__name__)
MIN_COVERAGE = 0.01  # of a camera of the network; one that is covered less stays black
NO_MAP_LIMIT_MPS = 13.9
TIMES_MAX = 100_000  # planning times in memory, the newest


@dataclass(eq=False)
class Session:
    """What one rollout keeps between its calls."""

    engine: Engine
    views: tuple[View, ...]
    worker: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "session"))
    route: Array = field(default_factory=lambda: np.zeros((0, 3)))  # (L, 3) map frame
    instants: deque[tuple[int, tuple[CameraFrame, ...]]] = field(default_factory=lambda: deque(maxlen=64))
    running: Future[StepReport] | None = None


class PlannerDriver(BaseDriver):
    """`config.planner` for the sessions of a server."""

    def __init__(self, config: Config, networks: Networks, deadline_s: float) -> None:
        self.name = f"reflectdrive-{config.planner}"
        self._config, self._networks, self._deadline_s = config, networks, deadline_s
        self._rig: tuple[Camera, ...] = tuple(camera_rig(networks))
        self._sessions: dict[str, Session] = {}
        self._network_lock = threading.Lock()
        self._counts: Counter[str] = Counter()  # sessions, late, and plans by name of their source
        self._times_ms: deque[float] = deque(maxlen=TIMES_MAX)
        self._counts_lock = threading.Lock()

    def numbers(self) -> dict[str, Any]:
        """Sessions, plans by source, plans that were not ready at the deadline, and the engine's time per plan."""
        with self._counts_lock:
            counts, times_ms = Counter(self._counts), np.array(self._times_ms)
        plans = {source.name.lower(): counts[source.name] for source in PlanSource if counts[source.name]}
        total = None
        if len(times_ms):
            total = {f"p{share}": round(float(np.percentile(times_ms, share)), 3) for share in (50, 99)}
        return {"sessions": counts["sessions"], "plans": plans, "late": counts["late"], "latency_ms": {"total": total}}

    def _count(self, name: str, time_ms: float | None = None) -> None:
        with self._counts_lock:
            self._counts[name] += 1
            if time_ms is not None:
                self._times_ms.append(time_ms)

    # --- sessions ---------------------------------------------------------------------------------------------------

    def on_session_start(self, session: SessionState) -> None:
        """Raises BadInput, which the server answers with FAILED_PRECONDITION, for cameras that cannot be used."""
        calibrations = [
            convert.calibration(camera, Pose.from_proto(camera.rig_to_camera)) for camera in session.cameras.values()
        ]
        if self._rig and not calibrations:
            raise BadInput(f"no camera is declared, {self._config.planner} needs {len(self._rig)}")
        views = plan_views(self._rig, calibrations) if self._rig else ()
        for view in views:
            log.info(
                "session %s: %s from %s, %.0f %% covered",
                session.uuid,
                view.camera.name,
                view.source,
                100 * view.coverage,
            )
        if self._rig and max(view.coverage for view in views) < MIN_COVERAGE:
            raise BadInput("no declared camera sees what the network's cameras see: check rig_to_camera")
        self._sessions[session.uuid] = Session(Engine(self._config, time.perf_counter, network=self._networks), views)
        self._count("sessions")

    def on_session_close(self, session: SessionState) -> None:
        if (closed := self._sessions.pop(session.uuid, None)) is not None:
            closed.worker.shutdown(wait=False, cancel_futures=True)

    def on_route(self, session: SessionState) -> None:
        """The route, in the map frame of the moment it was sent for."""
        with session.lock:
            waypoints, time_us = session.route_waypoints_in_rig, session.route_timestamp_us
            pose = session.ego_trajectory.interpolate(time_us) if len(session.ego_trajectory) else None
            pose = pose or session.latest_pose()
        if pose is not None:
            self._sessions[session.uuid].route = convert.route_in_map(waypoints, convert.planar(pose))

    # --- plans ------------------------------------------------------------------------------------------------------

    def drive(self, ctx: DriveContext) -> DriveResult:
        """A plan within the deadline, the stop plan if need be. Never raises for what a message holds."""
        own, time_us = self._sessions[ctx.session.uuid], ctx.time_now_us
        with ctx.session.lock:
            pose, state = ctx.session.latest_pose(), ctx.session.latest_dynamic_state()
        if pose is None or state is None:
            return DriveResult(RigTrajectory.empty(), debug_scalars={"no_egomotion": 1.0})
        try:
            ego = convert.ego_state(time_us, pose, state)
        except BadInput as fault:
            log.warning("session %s: %s", ctx.session.uuid, fault)
            return DriveResult(RigTrajectory.empty(), debug_scalars={"bad_input": 1.0})
        try:
            report = self._plan_in_time(own, ctx, ego)
        except BadInput as fault:
            log.warning("session %s: %s", ctx.session.uuid, fault)
            report = own.engine.stop(ego, None, str(fault))
        except Exception as fault:  # a session that fails must stop its car, and no other
            log.exception("session %s failed", ctx.session.uuid)
            report = own.engine.stop(ego, None, f"{type(fault).__name__}: {fault}")
        return self._result(report, time_us)

    def _plan_in_time(self, own: Session, ctx: DriveContext, ego: EgoState) -> StepReport:
        """The engine's step, or its stop plan where the step has not ended at the deadline."""
        if own.running is not None and not own.running.done():
            self._count("late")
            return own.engine.stop(ego, None, "the plan before this one is not ready yet")
        own.running = own.worker.submit(self._step, own, ctx, ego)
        try:
            return own.running.result(self._deadline_s)
        except FutureTimeout:
            self._count("late")
            reason = f"no plan within {1e3 * self._deadline_s:.0f} ms: raise --deadline-ms, or use a faster machine"
            log.warning("session %s: %s", ctx.session.uuid, reason)
            return own.engine.stop(ego, None, reason)

    def _step(self, own: Session, ctx: DriveContext, ego: EgoState) -> StepReport:
        observation = self.observation(own, ctx, ego)
        with self._network_lock:
            return own.engine.step(observation)

    def observation(self, own: Session, ctx: DriveContext, ego: EgoState) -> Observation:
        """The planner's inputs: images, ego, route, and of CARLA's ground truth the speed limit and the light."""
        route = geometry.compose(geometry.invert(ego.map_from_ego), own.route) if len(own.route) else own.route
        limit_mps = NO_MAP_LIMIT_MPS
        lights: tuple[TrafficLights | None, StopLines | None] = (None, None)
        if (ground_truth := ctx.renderer_data) is not None:
            limit_mps = float(ground_truth.speed_limit_mps) if ground_truth.speed_limit_mps > 0.0 else limit_mps
            name = TrafficLightState.Name(ground_truth.ego_traffic_light)
            lights = convert.light_ahead(name, float(ground_truth.ego_traffic_light_distance_m), route)
        return Observation(
            stamp_ns=ego.stamp_ns,
            ego=ego,
            route=route,
            command=command_along(route),
            speed_limit_mps=limit_mps,
            cameras=self._images(own, ctx.session, ego.stamp_ns),
            traffic_lights=lights[0],
            stop_lines=lights[1],
        )

    def _images(self, own: Session, session: SessionState, stamp_ns: int) -> tuple[CameraFrame, ...]:
        """Images of two instants, the older first, or of one at the start; none for planners without cameras."""
        if not own.views:
            return ()
        with session.lock:
            newest = {view.source: session.latest_frame(view.source) for view in own.views}
        decoded: dict[str, Array] = {}
        frames = []
        for view in own.views:
            frame, camera = newest[view.source], view.camera
            if frame is None or view.coverage < MIN_COVERAGE:
                pixels = black(camera)
            else:
                if view.source not in decoded:
                    decoded[view.source] = _decode(frame, view.size)
                pixels = reproject(view, decoded[view.source]) if not view.passes_through else decoded[view.source]
            frames.append(CameraFrame(stamp_ns, camera.name, pixels, camera.pixels_from_camera, view.camera_from_ego))
        if not decoded:
            raise BadInput("no image has arrived: submit one of each declared camera before drive")
        target_ns = stamp_ns - PAIR_INTERVAL_S * 1e9
        older = min(own.instants, key=lambda instant: abs(instant[0] - target_ns), default=None)
        own.instants.append((stamp_ns, tuple(frames)))
        if older is None or abs(older[0] - target_ns) > PAIR_TOLERANCE_S * 1e9:
            return tuple(frames)
        return (*older[1], *frames)

    def _result(self, report: StepReport, time_us: int) -> DriveResult:
        self._count(report.source.name, report.timings_ms.get("total"))
        times, poses = convert.trajectory_us(report.plan.trajectory, time_us)
        plan = RigTrajectory(times, [Pose.from_xyz_yaw(x, y, 0.0, heading) for x, y, heading in poses.tolist()])
        scalars = {
            "total_ms": report.timings_ms.get("total", 0.0),
            "stopped": float(report.source is PlanSource.STOP),
            "carried": float(report.source is PlanSource.CARRIED),
            "verdict": float(report.verdict),
        }
        return DriveResult(plan, debug_scalars=scalars)


def _decode(frame: Any, size: tuple[int, int]) -> Array:
    """(H, W, 3) uint8 RGB of a frame's JPEG or PNG at a size (width, height). Raises BadInput."""
    data = np.frombuffer(frame.image_bytes, np.uint8)
    image = cv2.imdecode(data, cv2.IMREAD_COLOR) if len(data) else None
    if image is None:
        raise BadInput(f"camera {frame.logical_id}: {len(data)} bytes are no JPEG or PNG image: encode it as one")
    if image.shape[1::-1] != size:
        image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB))
