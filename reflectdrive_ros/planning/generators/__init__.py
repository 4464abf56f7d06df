"""The generators, a file each: from an observation to candidates. They do not import each other."""

from __future__ import annotations

from ..candidates import GeneratorSpec
from . import constant_velocity, drivefine, reflectdrive, reflectdrive2, reflexdiffusion, route_follower

GENERATORS: dict[str, GeneratorSpec] = {
    module.SPEC.name: module.SPEC
    for module in (constant_velocity, route_follower, reflectdrive2, reflectdrive, drivefine, reflexdiffusion)
}
