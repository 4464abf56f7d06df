"""The light, the colours and the camera of one drive: all that differs between two images of the same objects."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...core.domain import Array
from .polygons import Material


@dataclass(frozen=True, eq=False)
class Appearance:
    """Appearance of a drive; colours are linear RGB, 1 is white paper in full light."""

    seed: int
    sun: Array  # (3,) unit vector towards the sun, map frame
    sun_rgb: Array  # (3,)
    ambient_rgb: Array  # (3,)
    zenith_rgb: Array  # (3,)
    horizon_rgb: Array  # (3,) also what distance fades into
    lights_on: bool  # of the traffic, at dusk and at night
    visibility_m: float  # distance at which two thirds of an object have faded
    tints: Array  # (materials, 3) factors of each Material's colours
    gain_rgb: Array  # (3,) of the camera
    noise: int  # sigma of the sensor, grey levels
    pitch_rad: float  # pitch of the body on its suspension, down is positive
    roll_rad: float
    height_m: float  # offset above the cameras' nominal height

    @property
    def shade(self) -> float:
        """Brightness of the ground in a thing's shadow, 0..1 of that in the open."""
        ground = self.ambient_rgb + self.sun_rgb * self.sun[2]
        return float(np.mean(self.ambient_rgb) / np.mean(ground))

    def lit(self, albedo: Array, material: Array, normals: Array) -> Array:
        """(F, 3) light from the faces to the camera, 0..1; normals (F, 3) in the map frame, zero for leaves."""
        sunny = normals @ self.sun
        sunny = np.where(normals.any(axis=1), np.maximum(sunny, 0.0), 0.55)
        upward = 0.8 + 0.2 * normals[:, 2]  # the sky is above
        light = self.ambient_rgb * upward[:, None] + self.sun_rgb * sunny[:, None]
        light[material == Material.GLOW] = 1.0
        return np.asarray(albedo * self.tints[material] * light)


def sample_appearance(seed: int) -> Appearance:
    """Sunny, overcast, dusk or near night, with a palette and camera parameters; the same for the same seed."""
    rng = np.random.default_rng([seed, 0x100C])
    weather = rng.choice(4, p=[0.45, 0.33, 0.14, 0.08])
    high = (rng.uniform(0.5, 1.1), rng.uniform(0.6, 1.2), rng.uniform(0.12, 0.3), 0.5)[weather]
    azimuth = rng.uniform(-np.pi, np.pi)
    sun = np.array([np.cos(azimuth) * np.cos(high), np.sin(azimuth) * np.cos(high), np.sin(high)])
    sun_rgb, ambient, zenith, horizon = (
        np.array(colour)
        for colour in (
            ((0.68, 0.63, 0.54), (0.64, 0.66, 0.70), (0.36, 0.56, 0.86), (0.78, 0.85, 0.92)),
            ((0.16, 0.16, 0.16), (0.92, 0.94, 0.96), (0.66, 0.70, 0.75), (0.84, 0.86, 0.88)),
            ((0.60, 0.40, 0.22), (0.50, 0.48, 0.56), (0.32, 0.38, 0.58), (0.90, 0.68, 0.50)),
            ((0.03, 0.03, 0.05), (0.42, 0.43, 0.51), (0.07, 0.09, 0.18), (0.20, 0.22, 0.31)),
        )[weather]
    )
    level = rng.uniform(0.88, 1.12)
    warmth = rng.normal(0.0, 0.03)
    tints = np.ones((len(Material), 3))
    tints[Material.ASPHALT] = rng.uniform(0.75, 1.3) * (1 + rng.normal(0, 0.02, 3))
    tints[Material.PAINT] = rng.uniform(0.82, 1.05)
    tints[Material.STRIPES] = tints[Material.PAINT]
    tints[Material.KERB] = rng.uniform(0.85, 1.1)
    tints[Material.PAVING] = rng.uniform(0.8, 1.1) * (1 + rng.normal(0, 0.03, 3))
    tints[Material.CYCLEWAY] = rng.uniform(0.8, 1.1)
    season = rng.uniform(-1.0, 1.0)  # from lush to dry
    tints[Material.GRASS] = np.array([1 + 0.35 * season, 1.0 + 0.05 * season, 1.0]) * rng.uniform(0.8, 1.1)
    tints[Material.FOLIAGE] = np.array([1 + 0.3 * season, 1.0, 0.9]) * rng.uniform(0.75, 1.1)
    tints[Material.WALL] = 1 + rng.normal(0, 0.04, 3)
    return Appearance(
        seed=seed,
        sun=sun,
        sun_rgb=sun_rgb * level,
        ambient_rgb=ambient * level,
        zenith_rgb=zenith * level * (1 + rng.normal(0, 0.04, 3)),
        horizon_rgb=horizon * level * (1 + rng.normal(0, 0.02, 3)),
        lights_on=bool(weather >= 2),
        visibility_m=float(rng.uniform(350, 900) if weather != 1 else rng.uniform(180, 600)),
        tints=tints,
        gain_rgb=rng.uniform(0.92, 1.08) * np.array([1 + warmth, 1.0, 1 - warmth]),
        noise=int(rng.integers(1, 4) + (weather == 3)),
        pitch_rad=float(np.radians(np.clip(rng.normal(0, 0.25), -0.7, 0.7))),
        roll_rad=float(np.radians(np.clip(rng.normal(0, 0.25), -0.7, 0.7))),
        height_m=float(np.clip(rng.normal(0, 0.012), -0.03, 0.03)),
    )
