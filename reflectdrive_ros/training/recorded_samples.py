"""Training samples of recorded traffic: the human ego, and every other car that drives on the mapped lanes, as ego.

    sets = recorded_set(folder, spec, hold_out=["USA_Peach"])     # a VectorSet, recorded=True

A sample is taken every SAMPLE_EVERY_STEPS while the network's horizon of future is left. The observation is that of the
evaluation (`data.real_tracks.observation_at`): route from the ego's own track, acceleration, yaw rate and steering 0.
The future is the recorded drive of the rear axle, smoothed (`driven_poses`); those of the neighbours are recorded.

Recordings of one site show the same vehicles: a drive that was sampled already is not sampled again. Drives that teach
a fault of the tracks are left out, counted by reason (`SKIPPED`).

In training, `perturb_ego` displaces some of the starts: a recording has only a driver who stays in his lane, and a
planner that learns from it alone never sees how to come back.

Rows are stored once per site in the folder of scene sets, under the hash of the recordings and of the input format, so
that leaving a site out costs nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy.interpolate import BPoly
from scipy.signal import savgol_filter

from ..core import geometry
from ..core.config import ConfigError
from ..core.domain import AgentHistory, AgentKind, Array
from ..core.vector_spec import VectorSpec
from ..data import real_tracks, sets
from ..data.cache import write_array
from ..data.real_tracks import STEP_S, Recording, TracksError
from ..features.vectors import agent_order, vector_inputs
from ..infra.files import sha256_of, write_atomic
from ..scoring import drivable
from .vector_data import VectorSet, flat_row, format_key, futures, row_size, set_of_rows

RECORDED = real_tracks.NAME  # as a training set, instead of a folder of scenes; real_tracks:DIR: that of a folder
FORMAT = 3  # raise it when samples change
SAMPLE_EVERY_STEPS = 5  # 0.5 s
HISTORY_STEPS = AgentHistory.STEPS - 1  # another vehicle is sampled after 2 s, or from the start of the recording
SPEED_STEPS = 5  # the speed of another vehicle is that over 0.5 s
SMOOTHED_STEPS, SMOOTHED_DEGREE = 15, 2  # Savitzky-Golay filter of a drive: 1.5 s, quadratic
HEADING_SPEED_MPS = 1.0  # the recorded heading of a slower car is noise
CAR_LENGTH_M, CAR_WIDTH_M = (3.0, 6.5), (1.3, 2.5)  # the ego's size is no input of the network
MIN_MEAN_SPEED_MPS = 1.0  # of the future of another vehicle: why it stands is not recorded
ROUTE_OFFSET_M = 4.0  # of the future from the route's line: a lane change is less, a displaced start within 5 m
SAME_DRIVE_M = 0.05
LATERAL_M, HEADING_RAD, SPEED_MPS = 0.75, 0.35, 1.0  # largest displacements
LATERAL_SPEED_MPS = 1.0  # the heading error is limited to this lateral speed
MIN_SPEED_MPS = 2.0  # slower egos are not displaced
JOIN_S = 2.0  # the future is kept from here on

OFF_ROAD = "leaves the mapped lanes"
NO_LANE = "is on no lane"
OFF_ROUTE = "leaves its route"
STANDING = "stands"
OVERLAP = "overlaps another box"
NO_CAR = "has not the size of a car"
REPEATED = "is in another recording, too"
SKIPPED = (OFF_ROAD, NO_LANE, OFF_ROUTE, STANDING, OVERLAP, NO_CAR, REPEATED)  # reasons, of samples


def tracks_folder(name: str) -> Path | None:
    """The folder of recordings that a training set names; None where it is a folder of scenes."""
    recorded, colon, folder = name.partition(":")
    if recorded != RECORDED:
        return None
    return Path(folder) if colon else real_tracks.default_folder()


@dataclass(frozen=True, eq=False)
class RecordedSamples:
    """The samples of one site."""

    site: str
    rows: Array  # (n, columns) float32
    human: int  # samples of the recorded egos; the others follow
    skipped: dict[str, int]  # by reason


def recorded_set(
    folder: Path,
    spec: VectorSpec,
    hold_out: Sequence[str] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[VectorSet, dict[str, Any]]:
    """The samples of all recordings with a map, except of the sites `hold_out`, and their description for the card.

    Missing ones are computed first. Raises TracksError for a folder that cannot be used, ConfigError for a site that
    it does not hold.
    """
    sites: dict[str, list[tuple[Path, Recording]]] = {}
    for path in real_tracks.recordings_in(folder):
        recording = real_tracks.load(path)
        if recording.lanes:
            sites.setdefault(recording.family, []).append((path, recording))
    if unknown := sorted(set(hold_out) - set(sites)):
        raise ConfigError(f"--hold-out names {', '.join(unknown)}; {folder} holds the sites {', '.join(sorted(sites))}")
    used = sorted(set(sites) - set(hold_out))
    parts = []
    key = f"{FORMAT}-{format_key(spec)}"
    for done, site in enumerate(used):
        progress(done, len(used))
        parts.append(_site(site, sites[site], spec, key))
    progress(len(used), len(used))
    if not sum(len(part.rows) for part, _ in parts):
        raise TracksError(
            f"{folder} holds no recorded drive of {spec.horizon_s:g} s on mapped lanes"
            + (f" without the sites {', '.join(sorted(hold_out))}" if hold_out else "")
        )
    rows = tuple(part.rows for part, _ in parts)
    about = {
        "set": "real_tracks",
        "hold_out": sorted(hold_out),
        "sites": {
            part.site: {"samples": len(part.rows), "human": part.human, "skipped": part.skipped} for part, _ in parts
        },
    }
    return set_of_rows(rows, spec, "".join(digest for _, digest in parts), None), about


def _site(
    site: str, recordings: Sequence[tuple[Path, Recording]], spec: VectorSpec, key: str
) -> tuple[RecordedSamples, str]:
    """The samples of a site, from its file where there is one, and their hash."""
    hashes = [sha256_of(path) for path, _ in recordings]
    home = sets.default_folder("real_tracks.vectors", {"format": key})
    digest = hashlib.sha256(json.dumps([key, site, hashes]).encode()).hexdigest()
    table, note = home / f"{digest[:16]}.npy", home / f"{digest[:16]}.json"
    if not table.exists():
        samples = site_samples([recording for _, recording in recordings], spec)
        home.mkdir(parents=True, exist_ok=True)
        write_atomic(note, json.dumps({"human": samples.human, "skipped": samples.skipped}).encode())
        write_array(table, samples.rows)
    summary = json.loads(note.read_bytes())
    rows = np.load(table, mmap_mode="r", allow_pickle=False)
    return RecordedSamples(site, rows, summary["human"], summary["skipped"]), digest


def site_samples(recordings: Sequence[Recording], spec: VectorSpec) -> RecordedSamples:
    """The samples of the recordings of one site: those of the recorded egos first."""
    rows = [np.zeros((0, row_size(spec)), np.float32)]
    marks = np.zeros((0, 6))
    skipped = Counter[str]()
    human = 0
    drives = [SampledDrive(recording, 0, True) for recording in recordings]
    for drive in (*drives, *(other for recording in recordings for other in other_drives(recording))):
        for step in sample_steps(drive, spec):
            mark = _mark(drive.recording, step, future_steps(spec))
            if (np.abs(marks - mark) < SAME_DRIVE_M).all(axis=1).any():
                skipped[REPEATED] += 1
                continue
            sample = drive_sample(drive, step, spec)
            if isinstance(sample, str):
                skipped[sample] += 1
                continue
            marks = np.concatenate([marks, mark[None]])
            rows.append(flat_row(sample)[None])
            human += drive.human
    counts = {reason: skipped[reason] for reason in SKIPPED if skipped[reason]}
    return RecordedSamples(recordings[0].family, np.concatenate(rows), human, counts)


def _mark(recording: Recording, step: int, steps: int) -> Array:
    """(6,) what a drive has in common in all recordings, whose frames differ by a shift."""
    before, middle, after = recording.ego_centers[[step, step + steps // 2, step + steps], :2]
    return np.concatenate([middle - before, after - before, recording.ego_size])


# --- drives ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SampledDrive:
    """A recording with the car that is sampled as its ego."""

    recording: Recording
    first: int  # step of its first sample
    human: bool  # the ego is that of the recording

    @cached_property
    def poses(self) -> Array:
        """(T, 3) rear-axle poses, smoothed."""
        return driven_poses(self.recording.ego_centers, self.recording.vehicle.rear_axle_to_center_m)

    @cached_property
    def on_road(self) -> Array:
        """(T,) bool, the whole box is on the mapped lanes."""
        corners = geometry.box_corners(self.recording.ego_centers, self.recording.ego_size)
        return np.asarray(drivable.contains(self.recording.drivable_space, corners).all(axis=1))


def other_drives(recording: Recording) -> Iterator[SampledDrive]:
    """The other vehicles of a recording, each as the ego of the steps at which it is observed without a gap. Its first
    sample is where it has been observed for 2 s, or the start of the recording: the first starts of the evaluation have
    no history either."""
    observed = np.isfinite(recording.agent_centers[..., 0])
    for agent in np.flatnonzero(observed.any(axis=1) & (recording.agent_kinds == AgentKind.VEHICLE)).tolist():
        first = int(observed[agent].argmax())
        last = first + int((~np.append(observed[agent, first:], False)).argmax())
        if last - first > SPEED_STEPS:
            yield SampledDrive(as_ego(recording, agent, first, last), HISTORY_STEPS if first else 0, False)


def as_ego(recording: Recording, agent: int, first: int, last: int) -> Recording:
    """The steps first .. last - 1 of a recording with an agent, observed in all of them, as the ego. The former ego
    takes the agent's row."""
    steps = slice(first, last)
    centers, velocities = recording.agent_centers[:, steps].copy(), recording.agent_velocities_mps[:, steps].copy()
    sizes, kinds = recording.agent_sizes.copy(), recording.agent_kinds.copy()
    ego_centers, ego_size = centers[agent].copy(), sizes[agent].copy()
    centers[agent], sizes[agent], kinds[agent] = recording.ego_centers[steps], recording.ego_size, AgentKind.VEHICLE
    heading = centers[agent, :, 2:]
    velocities[agent] = recording.ego_speeds_mps[steps, None] * np.concatenate([np.cos(heading), np.sin(heading)], 1)
    changed = replace(
        recording,
        ego_centers=ego_centers,
        ego_speeds_mps=speeds_of(ego_centers),
        ego_size=ego_size,
        agent_centers=centers,
        agent_velocities_mps=velocities,
        agent_sizes=sizes,
        agent_kinds=kinds,
    )
    for name in ("lane_segments", "drivable_polygons", "drivable_space"):  # of the map, which is the same
        vars(changed)[name] = getattr(recording, name)
    return changed


def speeds_of(centers: Array) -> Array:
    """(T,) m/s of a track (T, 3), over the SPEED_STEPS around each step."""
    steps = np.arange(len(centers))
    begin = np.clip(steps - SPEED_STEPS // 2, 0, len(centers) - 1 - SPEED_STEPS)
    away = centers[begin + SPEED_STEPS, :2] - centers[begin, :2]
    return np.asarray(np.hypot(away[:, 0], away[:, 1]) / (SPEED_STEPS * STEP_S))


def driven_poses(centers: Array, ahead_m: float) -> Array:
    """(T, 3) smoothed poses of the rear axle of a track (T, 3) of box centres, which are `ahead_m` before it.

    Positions and headings are filtered; where the car is slow its heading is interpolated from where it is not.
    """
    moving = speeds_of(centers) >= HEADING_SPEED_MPS
    heading = np.unwrap(centers[:, 2])
    if moving.any():
        steps = np.arange(len(centers))
        heading = np.interp(steps, steps[moving], np.unwrap(centers[moving, 2]))
    track = np.column_stack([centers[:, :2], heading])
    if len(track) >= SMOOTHED_STEPS:
        track = savgol_filter(track, SMOOTHED_STEPS, SMOOTHED_DEGREE, axis=0)
    return geometry.compose(track, np.array([-ahead_m, 0.0, 0.0]))


# --- samples ---------------------------------------------------------------------------------------------------------


def stride(spec: VectorSpec) -> int:
    """Steps of a recording per step of the network's future. Raises ConfigError unless it is a whole number."""
    steps = round(spec.future_dt_s / STEP_S)
    if steps < 1 or abs(steps * STEP_S - spec.future_dt_s) > 1e-9:
        raise ConfigError(f"the network's future_dt_s is {spec.future_dt_s:g}: recordings need a multiple of {STEP_S}")
    return steps


def future_steps(spec: VectorSpec) -> int:
    """Steps of a recording that a future lasts."""
    return stride(spec) * spec.future_steps


def sample_steps(drive: SampledDrive, spec: VectorSpec) -> range:
    """The steps of a drive at which samples are taken."""
    return range(drive.first, drive.recording.steps - future_steps(spec), SAMPLE_EVERY_STEPS)


def drive_sample(drive: SampledDrive, step: int, spec: VectorSpec) -> dict[str, Array] | str:
    """The sample at a step, or the reason why there is none."""
    recording = drive.recording
    until = step + future_steps(spec)
    driven = recording.ego_centers[step : until + 1]
    if reason := "" if drive.human else _unlike_a_human(recording, driven):
        return reason
    if not drive.on_road[step : until + 1].all():
        return OFF_ROAD
    try:
        observation, _ = real_tracks.observation_at(recording, step, vectors=True)
    except TracksError:
        return NO_LANE
    ego_from_map = geometry.invert(recording.ego_poses[step])
    later = slice(step + stride(spec), until + 1, stride(spec))
    future = geometry.compose(ego_from_map, drive.poses[later])
    if np.abs(geometry.project(observation.route, future[:, :2])[1]).max() > ROUTE_OFFSET_M:
        return OFF_ROUTE
    if _overlaps(recording, step, until):
        return OVERLAP
    assert observation.agents is not None
    observed = np.flatnonzero(np.isfinite(recording.agent_centers[:, step, 0]))
    read = observed[agent_order(observation.agents, spec)][: spec.predicted_agents]
    others = recording.agent_centers[read, later]
    present: Array = np.isfinite(others).all(axis=-1)  # type: ignore[assignment]
    agents = geometry.compose(ego_from_map, np.where(present[..., None], others, 0.0))
    return {**vector_inputs(observation, spec).arrays, **futures(future, agents, present, spec)}


def _unlike_a_human(recording: Recording, driven: Array) -> str:
    """Why another vehicle is no ego; empty if it is one."""
    for side, (shortest, longest) in zip(recording.ego_size.tolist(), (CAR_LENGTH_M, CAR_WIDTH_M), strict=True):
        if not shortest <= side <= longest:
            return NO_CAR
    way_m = geometry.arc_lengths(driven[::SPEED_STEPS, :2])[-1]
    return STANDING if way_m < MIN_MEAN_SPEED_MPS * STEP_S * (len(driven) - 1) else ""


def _overlaps(recording: Recording, step: int, until: int) -> bool:
    """Whether the ego's box overlaps that of an agent in the steps until `until`."""
    others = recording.agent_centers[:, step : until + 1 : SAMPLE_EVERY_STEPS]
    ego = np.broadcast_to(recording.ego_centers[step : until + 1 : SAMPLE_EVERY_STEPS], others.shape)
    present = np.isfinite(others).all(axis=-1)
    sizes = np.broadcast_to(recording.agent_sizes[:, None], (*present.shape, 2))[present]
    ego_sizes = np.broadcast_to(recording.ego_size, sizes.shape)
    return bool(geometry.boxes_overlap(ego[present], ego_sizes, others[present], sizes).any())


# --- displaced egos ---------------------------------------------------------------------------------------------------


def perturb_ego(arrays: Mapping[str, Array], which: Array, rng: np.random.Generator, dt_s: float) -> dict[str, Array]:
    """Samples (B,) of which those `which` (B,) bool are displaced, all arrays in the new ego frame; their futures lead
    back to the drive until JOIN_S.

    Source: Diffusion-Planner (Zheng et al., ICLR 2025), data augmentation; its ranges, except that the heading error is
    smaller at higher speed, where 0.35 rad would leave the road before two seconds are over.
    """
    speed = arrays["ego"][:, 4].astype(float)
    uniform = rng.uniform(-1.0, 1.0, (len(speed), 3))
    which = which & (speed >= MIN_SPEED_MPS)
    moved = {name: np.array(values) for name, values in arrays.items()}
    for row in np.flatnonzero(which):
        turn = min(HEADING_RAD, LATERAL_SPEED_MPS / speed[row])
        pose = np.array([0.0, LATERAL_M * uniform[row, 0], turn * uniform[row, 1]])
        faster = max(speed[row] + SPEED_MPS * uniform[row, 2], 0.0)
        future = rejoin(pose, faster, float(arrays["ego"][row, 6]), arrays["ego_future"][row].astype(float), dt_s)
        sample = {name: moved[name][row] for name in moved}
        sample["ego_future"] = future
        for name, values in in_frame(sample, pose).items():
            moved[name][row] = values
        moved["ego"][row, 4], moved["ego"][row, 7] = faster, faster * arrays["ego"][row, 9]
    return moved


def rejoin(pose: Array, speed_mps: float, acceleration_mps2: float, future: Array, dt_s: float) -> Array:
    """Poses (T, 3) from a displaced pose (3,): a quintic in x and in y that meets the future at JOIN_S."""
    join = round(JOIN_S / dt_s)
    direction = np.array([np.cos(pose[2]), np.sin(pose[2])])
    ends = future[join - 2 : join + 1, :2]  # the pose at JOIN_S is index join - 1
    velocity = (ends[2] - ends[0]) / (2.0 * dt_s)
    bend = (ends[2] - 2.0 * ends[1] + ends[0]) / dt_s**2
    times = dt_s * np.arange(1, join + 1)
    start = pose[:2], speed_mps * direction, acceleration_mps2 * direction
    points = BPoly.from_derivatives([0.0, JOIN_S], np.array([start, (ends[1], velocity, bend)]))(times)
    path = np.concatenate([pose[None, :2], points])
    heading = geometry.headings_along(np.concatenate([path, future[join : join + 1, :2]]))[1 : join + 1]
    return np.concatenate([np.column_stack([points, heading]), future[join:]])


def in_frame(sample: Mapping[str, Array], pose: Array) -> dict[str, Array]:
    """The arrays of one sample in the frame of a pose (3,) of their own frame; the ego's own row is unchanged."""
    new_from_old = geometry.invert(pose)
    changed = {}
    for name, values in sample.items():
        if name in ("agents", "static_objects", "lanes", "route_lanes"):
            rows = values.astype(float)
            is_present = (rows != 0.0).any(axis=-1, keepdims=True)
            rows[..., :2] = geometry.transform_points(new_from_old, rows[..., :2])
            turned = {"agents": (2, 4), "static_objects": (2,)}.get(name, (2, 4, 6))
            for first in turned:
                rows[..., first : first + 2] = geometry.rotate(rows[..., first : first + 2], new_from_old[2])
            changed[name] = np.where(is_present, rows, 0.0)
        elif name == "ego_future":
            changed[name] = geometry.compose(new_from_old, values)
        elif name == "agent_futures":
            changed[name] = (
                geometry.compose(new_from_old, values.astype(float)) * (sample["agent_valid"] > 0)[..., None]
            )
    return changed
