"""Reflection of ReflexDiffusion: a step of the sampler whose plan has a low confidence is taken back and done again.

Equations 7 to 9 of the paper; `generators/reflexdiffusion.py` says what differs from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..core.domain import Array
from ..core.recipe_config import ReflexDiffusionConfig
from .denoiser import Predict, StepResult, ddim_inverse, ddim_step, noise_of, with_present

ConfidenceOf = Callable[[Array], float]  # clean futures -> confidence of the ego's
REFLECTION_GUIDANCE = 0.0  # of the noise that is added again: without conditions, as in the paper
CONFIDENCE_MIN = 0.8  # steps with a lower confidence are reflected
REFLECTIONS_MAX = 10  # reflected steps of a plan


@dataclass(frozen=True)
class Reflection:
    """One reflected step of the sampler."""

    step: int
    before: float  # confidence
    after: float
    accepted: bool


def guided(predictions: Array, weight: float) -> Array:
    """u + weight (c - u) of predictions (2, ..): c with all conditions, u with the route only; of (1, ..) it is c.

    A weight of 1 gives c exactly, 0 gives u exactly.
    """
    if len(predictions) == 1 or weight == 1.0:
        return np.asarray(predictions[0])
    conditional, unconditional = predictions
    return np.asarray(unconditional + weight * (conditional - unconditional)) if weight else np.asarray(unconditional)


@dataclass(eq=False)
class Reflector:
    """Corrects a step of the sampler: `denoiser.sample` calls it after each."""

    predict: Predict  # with guidance
    explore: Predict  # with the guidance of reflection
    confidence_of: ConfidenceOf
    present: Array  # (P, 4)
    settings: ReflexDiffusionConfig
    reflections: list[Reflection] = field(default_factory=list)

    def __call__(self, step: StepResult, number: int) -> StepResult:
        settings = self.settings
        if number == settings.steps - 1 or len(self.reflections) == REFLECTIONS_MAX:
            return step
        before = self.confidence_of(step.clean)
        if before >= CONFIDENCE_MIN:
            return step
        again = reflect(step, self.predict, self.explore, self.present)
        after = self.confidence_of(again.clean)
        accepted = after >= before
        self.reflections.append(Reflection(number, before, after, accepted))
        return again if accepted else step


def reflect(step: StepResult, predict: Predict, explore: Predict, present: Array) -> StepResult:
    """The step taken back and done again (equations 8 and 7).

    The noise is that of `explore` at the futures after the step, evaluated at the time before it.
    """
    noise = noise_of(step.futures, explore(step.futures, step.time), step.time)
    back = with_present(ddim_inverse(step.futures, noise, step.time, step.after), present)
    clean = predict(back, step.time)
    return StepResult(
        step.time, step.after, clean, with_present(ddim_step(back, clean, step.time, step.after), present)
    )
