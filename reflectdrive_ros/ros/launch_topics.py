"""What the launch files declare: arguments of both nodes, and the topics that they remap with their arguments."""

from __future__ import annotations

NODE_ARGUMENTS: tuple[tuple[str, str, str, list[str] | None], ...] = (  # argument, default, description, choices
    ("config_file", "", "YAML file laid over the defaults (config/reflectdrive.yaml lists them)", None),
    ("namespace", "/planning/reflectdrive", "namespace of the node", None),
    (
        "use_sim_time",
        "false",
        "true: take the time from /clock, as with a replayed bag; false: the wall clock's, unless the launch "
        "tree sets use_sim_time for all of its nodes",
        ["true", "false"],
    ),
    ("log_level", "info", "least severe message shown", ["debug", "info", "warn", "error", "fatal"]),
)
INPUTS = {  # the node's topic -> argument, its default (Autoware's name), description
    "~/input/odometry": ("input_odometry", "/localization/kinematic_state", "nav_msgs/Odometry in map"),
    "~/input/acceleration": ("input_acceleration", "/localization/acceleration", "AccelWithCovarianceStamped"),
    "~/input/route": ("input_route", "/planning/mission_planning/route", "LaneletRoute, or nav_msgs/Path"),
    "~/input/map": ("input_vector_map", "/map/vector_map", "LaneletMapBin, where lanelet_map names no file"),
    "~/input/objects": ("input_objects", "/perception/object_recognition/objects", "PredictedObjects"),
    "~/input/traffic_lights": (
        "input_traffic_signals",
        "/perception/traffic_light_recognition/traffic_signals",
        "TrafficLightGroupArray, where a map is read",
    ),
    "~/input/max_velocity": (
        "input_max_velocity",
        "/planning/scenario_planning/max_velocity",
        "VelocityLimit, at most which the car drives",
    ),
    "~/input/drivable": (
        "input_drivable",
        "~/input/drivable",
        "nav_msgs/OccupancyGrid, with inputs.drivable_type grid",
    ),
    "~/input/obstacles": (
        "input_obstacles",
        "/perception/obstacle_segmentation/pointcloud",
        "sensor_msgs/PointCloud2 without its ground, with inputs.obstacles_type cloud",
    ),
    "~/input/operation_mode_state": (
        "input_operation_mode",
        "/api/operation_mode/state",
        "OperationModeState: whether the planner or a driver drives",
    ),
    "~/input/turn_indicators_status": (
        "input_turn_indicators",
        "/vehicle/status/turn_indicators_status",
        "TurnIndicatorsReport",
    ),
    "~/input/instruction": ("input_instruction", "~/input/instruction", "std_msgs/String, the route in words"),
}
OUTPUTS = {  # likewise; by default they stay in the node's own namespace
    "~/output/trajectory": (
        "output_trajectory",
        "~/output/trajectory",
        "Trajectory; /planning/trajectory makes the car follow it",
    ),
    "~/output/candidate_trajectories": (
        "output_candidates",
        "~/output/candidate_trajectories",
        "CandidateTrajectories, for a selector",
    ),
    "~/output/turn_indicators": ("output_turn_indicators", "~/output/turn_indicators", "TurnIndicatorsCommand"),
    "~/output/planning_factors": ("output_planning_factors", "~/output/planning_factors", "PlanningFactorArray"),
    "~/output/predicted_objects": (
        "output_predicted_objects",
        "~/output/predicted_objects",
        "PredictedObjects: the forecast that plans were checked against",
    ),
    "~/output/debug/traffic_signal": (
        "debug/output_traffic_signal",
        "~/output/debug/traffic_signal",
        "TrafficLightGroup: the next light on the route",
    ),
    "~/debug/processing_time_ms": ("output_processing_time", "~/debug/processing_time_ms", "Float64Stamped"),
}
TRACKED_OBJECTS = "input_tracked_objects"  # argument: if set, this topic is read in place of input_objects
OUTPUT_SETTINGS = {  # argument -> setting, description; empty: as in the config file
    "candidates_max": ("output.candidates_max", "most candidates of a message, the plan included"),
    "horizon_s": ("output.horizon_s", "length in s to which shorter plans are continued; 0: as planned"),
}
PLANNER_ONLY = ("input_operation_mode", "input_turn_indicators", "input_instruction")  # arguments of the planner alone
SHOWN_ONLY = (  # outputs that no node acts on
    "~/output/planning_factors",
    "~/output/predicted_objects",
    "~/output/debug/traffic_signal",
    "~/debug/processing_time_ms",
)
CHECK_INPUTS = {  # likewise, of the check node
    "~/input/trajectories": (
        "input_trajectories",
        "/planning/generator/diffusion_planner/candidate_trajectories",
        "CandidateTrajectories of the generator to check",
    ),
    **{own: row for own, row in INPUTS.items() if row[0] not in PLANNER_ONLY},
}
CHECK_SETTINGS = {"inputs.route_type": "lanelet", "inputs.drivable_type": "map"}  # its launch file sets by default
CHECK_REMAPS = {
    "~/output/trajectories": (
        "output_trajectories",
        "~/output/trajectories",
        "CandidateTrajectories, for a processor or selector",
    ),
    "~/output/scored_trajectories": (
        "output_scored_trajectories",
        "~/output/scored_trajectories",
        "ScoredCandidateTrajectories",
    ),
    "~/output/trajectory": OUTPUTS["~/output/trajectory"],
    "~/output/planning_factors": OUTPUTS["~/output/planning_factors"],
}
