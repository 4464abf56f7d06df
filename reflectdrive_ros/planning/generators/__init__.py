"""The generators: each is one function `generate(state, observation, planner_context) -> Candidates`.

Generators do not import each other; what several need is in `planning`.
"""
