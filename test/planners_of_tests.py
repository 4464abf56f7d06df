"""Planners that only tests have, given as functions `(state, observation, context) -> (state, plan)`."""

from reflectdrive_ros.planning import GENERATORS
from reflectdrive_ros.planning.candidates import GeneratorSpec, of_trajectories


class PlannersOfTests:
    """`planners[name] = plan` registers a generator of that plan until the test ends."""

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch

    def __setitem__(self, name, plan):
        def generate(state, observation, planner_context):
            return of_trajectories((plan(state, observation, planner_context)[1].trajectory,))

        self._monkeypatch.setitem(GENERATORS, name, GeneratorSpec(name, generate, images=True))

    def __ior__(self, planners):
        for name, plan in planners.items():
            self[name] = plan
        return self
