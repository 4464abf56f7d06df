"""The variants that `reflectdrive bench reflection` compares."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..core.config import Config

PLANNER = "reflexdiffusion"
BASE = "base"


@dataclass(frozen=True)
class Variant:
    """Settings of one row."""

    name: str
    guidance: float
    reflection: bool


def make_variants(weights: list[float]) -> list[Variant]:
    """`base`, then guidance alone and with reflection for each weight."""
    rows = [Variant(BASE, 1.0, False)]
    for weight in weights:
        rows += [Variant(f"guidance {weight:g}", weight, False)] if weight != 1.0 else []
        rows.append(Variant(f"guidance {weight:g}, reflection", weight, True))
    return rows


def configured(config: Config, variant: Variant, *, repair: bool) -> Config:
    """The configuration of a variant."""
    settings = replace(config.reflexdiffusion, guidance=variant.guidance, reflection=variant.reflection, repair=repair)
    return replace(config, planner=PLANNER, reflexdiffusion=settings)
