"""Planners of other projects, to be compared with: each is an adapter; `make peers` installs its package.

They are measured by `reflectdrive eval` and are no choice for a vehicle. Licences: docs/planners/README.md.
"""

from __future__ import annotations

from ..candidates import GeneratorSpec
from . import fiss_plus

PEERS: dict[str, GeneratorSpec] = {fiss_plus.SPEC.name: fiss_plus.SPEC}
