"""The generators, a file each: from an observation to candidates.

They do not import each other; what several need is in `planning`.
"""

from __future__ import annotations

from ..candidates import GeneratorSpec
from . import constant_velocity, drivefine, idm_proposals, reflectdrive, reflectdrive2, reflexdiffusion, route_follower

GENERATORS: dict[str, GeneratorSpec] = {
    module.SPEC.name: module.SPEC
    for module in (
        constant_velocity,
        route_follower,
        idm_proposals,
        reflectdrive2,
        reflectdrive,
        drivefine,
        reflexdiffusion,
    )
}
