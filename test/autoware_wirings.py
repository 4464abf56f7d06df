"""The rules by which Autoware's nodes behind a generator take its candidates, as read from their sources of August to
October 2026 (autoware_universe: autoware_trajectory_processor, autoware_trajectory_selector and its concatenator).

Facts only: which message is processed, dropped or replaced. Their plugins, filters and scores are not here.
"""

from dataclasses import dataclass, field

from reflectdrive_ros.ros.convert import stamp_ns

CANDIDATE_AGE_MAX_S = 0.2  # `duration_time` of the concatenator
POINTS_MIN = 3
MOVING_MPS = 0.1  # a moving car gets no three-point stop
SOURCES = ("DiffusionPlanner_", "MinimumRuleBasedPlanner_Go", "MinimumRuleBasedPlanner_Stop")  # prefixes of names


@dataclass
class Processor:
    """`trajectory_processor`: runs at each message; its plugins keep their state from candidate to candidate."""

    odometry_speed_mps: float | None = None  # None: no odometry
    has_acceleration: bool = False
    plugin_calls: list[bytes] = field(default_factory=list)  # ids of the candidates, in the order of the calls

    def process(self, message):
        """(points of each candidate or "stop", header and points of the selected trajectory); None: nothing is sent."""
        if self.odometry_speed_mps is None or not self.has_acceleration:
            return None
        sent = []
        for candidate in message.candidate_trajectories:
            self.plugin_calls.append(bytes(candidate.generator_id.uuid))
            is_short = len(candidate.points) < POINTS_MIN
            sent.append("stop" if is_short and self.odometry_speed_mps <= MOVING_MPS else candidate.points)
        first = message.candidate_trajectories[0]
        return sent, (first.header, sent[0])


@dataclass
class Selector:
    """`trajectory_selector`: a message of the generator (the anchor) starts a cycle at once."""

    inputs: frozenset = frozenset({"odometry", "objects", "acceleration", "map"})  # that have been received
    buffer: dict = field(default_factory=dict)  # id -> (name, candidates)

    def on_anchor(self, message, now_ns):
        self.add(message)
        return self.cycle(now_ns)

    def add(self, message):
        """A generator's candidates replace those of the same id; ids that the message does not name stay."""
        for info in message.generator_info:
            key = bytes(info.generator_id.uuid)
            own = [each for each in message.candidate_trajectories if bytes(each.generator_id.uuid) == key]
            self.buffer[key] = info.generator_name.data, own

    def cycle(self, now_ns):
        """(concatenated candidates, candidates that are ranked); the second is None where an input is missing."""
        for key, (name, candidates) in list(self.buffer.items()):
            young = [each for each in candidates if (now_ns - stamp_ns(each.header)) * 1e-9 <= CANDIDATE_AGE_MAX_S]
            self.buffer[key] = name, young
            if not young:
                del self.buffer[key]
        concatenated = [each for _, candidates in self.buffer.values() for each in candidates]
        if not {"odometry", "objects", "acceleration", "map"} <= self.inputs:
            return concatenated, None
        ranked = [each for name, candidates in self.buffer.values() for each in candidates if name.startswith(SOURCES)]
        return concatenated, ranked
