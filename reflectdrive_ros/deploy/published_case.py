"""Compares an imported network with the answers of the public Diffusion-Planner to the same inputs.

    case = read_case(Path("case.npz"), net.config)
    for row in compare(net, case):      # row.name, row.difference, row.tolerance, row.within

A case holds B scenes: `raw_*` inputs in metres, `norm_*` the same normalised, `encoding` (B, elements, hidden), `x_t`
with `x0_at_TIME` for each diffusion time (B, P, 1 + T, 4, the last two axes may be one), and `noise` with the
`prediction` in metres of the whole sampler (B, P, T, 4).

Two correct programs differ by the rounding of float32, and a network can enlarge it: a layer norm of nearly equal
numbers divides by nearly nothing. So the tolerance of a quantity is the stated one, or ROUNDINGS times its rounding
error on this machine, whichever is larger. The rounding error is the largest difference between this package's results
in float32 and in float64. Few elements of an encoding are enlarged, so the median over the elements of the largest
difference is compared too: a wrong bias shifts them all.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ..core.domain import Array
from ..infra.documents import DocumentError, read_arrays
from ..infra.errors import UserError
from ..model.denoiser.net import DenoiserNet, DenoiserNetConfig
from ..model.scene_encoder import POSE, VectorTensors
from ..planning import denoiser

TOLERANCE, TOLERANCE_M = 2e-5, 1e-3  # of normalised values; of the prediction
ROUNDINGS = 4.0  # this program and the other one round, in each direction
SAMPLER_STEPS = 10  # of the published sampler
INPUTS = {  # name in a case -> field of VectorTensors
    "ego_current_state": "ego",
    "neighbor_agents_past": "agents",
    "static_objects": "static_objects",
    "lanes": "lanes",
    "lanes_speed_limit": "lane_limits",
    "lanes_has_speed_limit": "lane_has_limit",
    "route_lanes": "route_lanes",
}
FLAGS = "lanes_has_speed_limit"  # not normalised
MEDIAN = "encoding, median element"
CLEAN = "x0_at_"  # and the diffusion time


class CaseError(UserError):
    """A case cannot be used; the message names the file, the array and what was expected."""


@dataclass(frozen=True)
class CaseDifference:
    """Of one quantity, in its unit."""

    name: str
    difference: float  # the largest
    stated: float  # tolerance of two exact programs
    rounding: float  # error of float32 on this machine

    @property
    def tolerance(self) -> float:
        return max(self.stated, ROUNDINGS * self.rounding)

    @property
    def within(self) -> bool:
        """Also False where a result is not finite."""
        return math.isfinite(self.tolerance) and self.difference <= self.tolerance


def compare(net: DenoiserNet, case: Mapping[str, Array]) -> list[CaseDifference]:
    """The largest difference of each quantity of a case, as `read_case` returns it."""
    single = answers(net, case, torch.float32)
    double = answers(copy.deepcopy(net).double(), case, torch.float64)
    rows = []
    for name, computed in single.items():
        stated = TOLERANCE_M if name == "prediction" else TOLERANCE
        away, rounding = (np.abs(computed - other[name]) for other in (case, double))
        rows.append(CaseDifference(name, float(away.max()), stated, float(rounding.max())))
        if name == "encoding":
            medians = (float(np.median(each.max(axis=-1))) for each in (away, rounding))
            rows.append(CaseDifference(MEDIAN, next(medians), stated, next(medians)))
    return rows


def answers(net: DenoiserNet, case: Mapping[str, Array], dtype: torch.dtype) -> dict[str, Array]:
    """The quantities of a case by name, computed by a network of this dtype; float64 arrays."""
    fields = {field: torch.from_numpy(case[f"raw_{name}"]) for name, field in INPUTS.items()}
    inputs = VectorTensors(**{name: x if x.dtype is torch.bool else x.to(dtype) for name, x in fields.items()})
    noisy = torch.from_numpy(case["x_t"]).to(dtype)[:, None]
    with torch.inference_mode():
        normal = net.normalize(inputs)
        tensors = {f"norm_{name}": getattr(normal, field) for name, field in INPUTS.items() if name != FLAGS}
        tensors["encoding"] = net.encoder(normal)
        context = net.encode(inputs)
        for name, time in clean_times(case).items():
            tensors[name] = net.denoise(noisy, torch.full(noisy.shape[:2], time, dtype=dtype), context)[:, 0]
        scenes = [VectorTensors(*(each[k : k + 1] for each in inputs)) for k in range(len(noisy))]
        plans = [_sample(net, scene, noise, dtype) for scene, noise in zip(scenes, case["noise"], strict=True)]
    arrays = {name: tensor.double().numpy() for name, tensor in tensors.items()}
    return {**arrays, "prediction": np.stack(plans)}


def _sample(net: DenoiserNet, scene: VectorTensors, noise: Array, dtype: torch.dtype) -> Array:
    """(P, T, 4) futures in metres that the published sampler finds from noise (P, T, 4)."""
    context, spec = net.encode(scene), net.config.spec

    def predict(futures: Array, time: float) -> Array:
        noisy = torch.from_numpy(futures).to(dtype)[None, None]
        return np.asarray(net.denoise(noisy, torch.full((1, 1), time, dtype=dtype), context)[0, 0].double().numpy())

    present = net.present_states(scene)[0].double().numpy()
    start = np.concatenate([present[:, None], denoiser.START_SCALE * noise.astype(float)], axis=1)
    return denoiser.in_metres(denoiser.sample(predict, start, present, SAMPLER_STEPS), spec)[:, 1:]


# --- reading ---------------------------------------------------------------------------------------------------------


def read_case(path: Path, config: DenoiserNetConfig) -> dict[str, Array]:
    """The arrays of a case for a network of these measures. Raises CaseError."""
    try:
        arrays = read_arrays(path)
    except OSError as fault:
        raise CaseError(f"{path} cannot be read: {fault.strerror}") from None
    except DocumentError as fault:
        raise CaseError(f"{path} {fault}") from None
    try:
        times = clean_times(arrays)
        shapes = case_shapes(config)
        missing = sorted(set(shapes) - set(arrays)) + ([] if times else [f"{CLEAN}T"])
        if missing:
            raise ValueError(f"lacks {', '.join(missing)}")
        scenes = arrays["x_t"].shape[0] if arrays["x_t"].ndim else 0
        if scenes == 0:
            raise ValueError("has x_t without scenes")
        shapes |= dict.fromkeys(times, shapes["x_t"])
        return {name: _array(arrays[name], name, (scenes, *shape)) for name, shape in shapes.items()}
    except ValueError as fault:
        raise CaseError(f"{path} {fault}: expected a case of this checkpoint's measures") from None


def case_shapes(config: DenoiserNetConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of a case's arrays without their first axis, the scenes; those of CLEAN are that of x_t."""
    spec = config.spec
    lane_columns = len(spec.normalization.lane_mean)
    inputs = {
        "ego_current_state": (len(spec.normalization.ego_mean),),
        "neighbor_agents_past": (spec.agents, spec.history_steps, len(spec.normalization.agent_mean)),
        "static_objects": (spec.static_objects, len(spec.normalization.static_mean)),
        "lanes": (spec.lanes, spec.lane_points, lane_columns),
        "lanes_speed_limit": (spec.lanes, 1),
        FLAGS: (spec.lanes, 1),
        "route_lanes": (spec.route_lanes, spec.lane_points, lane_columns),
    }
    return {
        **{f"raw_{name}": shape for name, shape in inputs.items()},
        **{f"norm_{name}": shape for name, shape in inputs.items() if name != FLAGS},
        "encoding": (config.scene.elements, config.hidden),
        "x_t": (spec.futures, 1 + spec.future_steps, POSE),
        "noise": (spec.futures, spec.future_steps, POSE),
        "prediction": (spec.futures, spec.future_steps, POSE),
    }


def clean_times(arrays: Mapping[str, Array]) -> dict[str, float]:
    """The diffusion time in the name of each array of clean futures. Raises ValueError."""
    times = {}
    for name in arrays:
        if name.startswith(CLEAN):
            try:
                times[name] = float(name.removeprefix(CLEAN))
            except ValueError:
                times[name] = math.nan
            if not 0.0 <= times[name] <= 1.0:
                raise ValueError(f"has {name}, expected a diffusion time from 0 to 1 after {CLEAN}")
    return times


def _array(array: Array, name: str, shape: tuple[int, ...]) -> Array:
    """An array of a case, as bool or float32. Raises ValueError."""
    if array.dtype.kind not in "biuf":
        raise ValueError(f"has {name} of {array.dtype}, expected numbers")
    flat = (*shape[:-2], shape[-2] * shape[-1])  # futures are also stored with steps and columns in one axis
    if array.shape not in (shape, flat if len(shape) == 4 and name.startswith("x") else shape):
        raise ValueError(f"has {name} of shape {array.shape}, expected {shape}")
    if name == f"raw_{FLAGS}":
        return np.asarray(array, bool)
    single = np.asarray(array, np.float32).reshape(shape)
    if not np.isfinite(single).all():
        raise ValueError(f"has NaN or infinity in {name}")
    return single
