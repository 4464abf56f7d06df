"""What to do about each sentence of the diagnostics, for docs/diagnostics.md (`diagnostic_sentences.py`).

A row belongs to the sentences that contain one of its fragments; of several rows the one with the longest fragment. A
sentence that says what to do needs none.
"""

from __future__ import annotations

STATUSES = {  # name of a status, `…` for a camera
    "image …": "images of one camera",
    "camera_info …": "calibration of one camera",
    "camera rig": "how each camera of the network is filled; its values have source, coverage and rotation",
    "tf_static": "poses of the cameras",
    "odometry": "pose and velocity; ERROR also after three jumps in 2 s",
    "acceleration": "counts as 0 where it is unusable",
    "objects": "road users; WARN also where some are ignored",
    "obstacles": "point cloud of what has no class",
    "drivable": "drivable space, of a grid or of the map",
    "traffic_lights": "what the lights show; its values count groups and lights of the map",
    "max_velocity": "a speed limit for this car, with its value; shown once received or expected",
    "route": "route to the goal",
    "map": "map of the topic",
    "instruction": "route in words; shown only after a message that cannot be read",
    "operation_mode": "who drives; shown once received",
    "turn_indicators_status": "what the car's indicators show; shown once received",
    "planner": "the last step: verdict, source, times; ERROR: the stop plan is sent, or five steps in a row were late",
    "candidates": "of the check node: messages of candidates of other planners",
    "candidate …": "of the check node: verdict on a candidate, what was changed, what it was checked against",
    "parameters": "how parameters of a launch tree were used; shown where there are any",
}

ADVICE: dict[str, tuple[str, ...]] = {  # what to do -> fragments of the sentences
    # --- any input
    "Find the topic: `ros2 topic info -v NAME`. No publisher: start it, or set the right name. A publisher of "
    "another type (LaneletRoute instead of Path): `route_type:=` or `inputs.route_type`. Image instead of "
    "CompressedImage: `cameras.compressed: false`": ("nothing received yet",),
    "The sender stopped or is slow, or the clocks of two machines differ. For a slower sensor raise "
    "`inputs.max_age_s`": (": newest is … s old",),
    "The clocks of two machines differ (chrony, PTP), or a bag is played without `use_sim_time:=true`": (
        "s in the future",
    ),
    "The driver does not stamp its messages: configure or update it": ("its stamp is 0",),
    "A bag or simulator without `use_sim_time:=true`, or sensors with it": ("its stamp is more than a day",),
    "The sender's stamps are no times: more than 10,000 messages a second": ("too close together for a rate",),
    "Play the bag with `--clock`, start the simulator, or set `use_sim_time:=false`": (
        "nothing was received on /clock",
    ),
    "Set the DDS profile on both sides ([on_a_car.md](on_a_car.md#dds-profile))": ("messages lost on the way",),
    "A message was truncated, or has another type or version: `ros2 topic info -v NAME`. Earlier messages stay in"
    " use within their age limit. Reported for 3 s": (
        "messages refused, the last one",
        "bytes are no …: …: send this type",
        "bytes do not start with the header of plain CDR",
        "reaches beyond the end of the message",
        "items in … bytes",
        "has no field '…'",
        "… are not read",
        "… bytes are left",
    ),
    "An error in this package: please report it. The message before stays in use": ("a message was not stored",),
    "See [troubleshooting](troubleshooting.md#a-message-of-170-mb-is-not-read)": ("MB is not read",),
    "Send a route of at most 20,000 points, fewer objects, paths and classes, or at most 1000 transforms per message": (
        "items is not read",
    ),
    "A node publishes ever new frames on `/tf_static`: stop it": ("frames in all are not kept",),
    "Publish odometry, route, objects and map in `output.map_frame`. If all are in another frame, such as `odom` "
    "in a bag, set `output.map_frame: odom`": ("is in frame '…', expected '…': publish",),
    # --- parameters
    "If the parameter is meant for this node, correct its name": ("unknown setting",),
    "Complete the vehicle's `vehicle_info.param.yaml`, or set `vehicle.*` in the config file": ("it lacks …",),
    "Nothing: the vehicle's dimensions come from Autoware's `vehicle_info.param.yaml`; those after `set "
    "otherwise` from the config file or parameters": ("from vehicle_info",),
    "Nothing, if a launch tree gives other nodes' parameters to all nodes; else check the name in "
    "[parameters.md](parameters.md)": ("ignored, no settings of this node",),
    # --- cameras
    "Restart the camera or its driver": ("the camera is frozen",),
    "A camera is delayed or has another rate. Synchronise the cameras, or raise `cameras.match_tolerance_s`": (
        "from the anchor's image",
    ),
    "Start the publisher of `camera_info`, or set `cameras.info_topics`": ("no camera_info received",),
    "The driver publishes an empty or impossible calibration: calibrate the camera": (
        "camera_info has no focal length",
        "camera_info has … px in k",
        "camera_info has no width and height",
        "distortion coefficient that is no number",
    ),
    "`cameras.rectified` is true, but `camera_info` has no rectification: calibrate the camera, or set it to false": (
        "no p and r of rectified images",
    ),
    "Publish the camera's pose, from `base_link` to the `frame_id` of its images, as a unit quaternion": (
        "/tf_static has no transform",
        "quaternion … is zero",
    ),
    "Calibrate with one of those models, or send rectified images and set `cameras.rectified`": (
        "has distortion model",
    ),
    "Complete `d` in `camera_info`": ("has … coefficients of",),
    "Publish the `camera_info` of these images. Of the same proportions it is scaled, with a warning; other "
    "proportions are refused": (
        "camera_info is for",
        "publish the camera_info of these images",
        "the calibration is scaled",
    ),
    "Nothing, in the first second; then see the status of `camera_info` and `tf_static`": (
        "not calibrated yet",
        "no camera is calibrated",
    ),
    "Check pose and intrinsics. If they are right, the network sees less than in its training: add a camera that "
    "covers the rest": ("the rest is black", "no camera covers it"),
    "No camera looks where the network's do: check the poses on `/tf_static` (optical frames: z forward, x right,"
    " y down)": ("no image for any of the network's cameras",),
    "Likewise; or use a network that was trained with `data.camera_dropout`": ("of the network is missing",),
    "A camera is missing or covers nothing. The network was trained for that; repair the camera": ("… is black: …",),
    "Nothing": (
        "baseline without a network",
        "what its fisheye sees",
        "the cameras are those of the network",
        "re-projected into the network's cameras",
        "… % covered, rotated by",
        "'s plan sent",
        "the map has no traffic lights",
        "from the map",
    ),
    "Set the driver to one of those encodings, or to JPEG (CompressedImage)": ("encoding '…' is unknown",),
    "The driver sends wrong sizes: update it": ("with rows of … bytes", "holds pixels in pairs", "holds rows in pairs"),
    "The JPEG is incomplete: set the DDS profile": ("are not an image",),
    "Set the driver to JPEG or PNG; no other format is decoded": ("are no JPEG and no PNG",),
    "Send smaller images": ("megapixels are",),
    "Set the driver to baseline or usual progressive JPEG": ("scans is not decoded",),
    # --- localisation, signals
    "Localisation sends NaN, a zero quaternion, or a height beyond 10 km, more than 100 m/s, 8 m/s sideways, 5 "
    "rad/s or 45 degrees of tilt. Check that the twist is in `base_link`. Nothing is published until it recovers": (
        "odometry cannot be used",
    ),
    "The pose moved over 2 m more than its speed explains. One jump is harmless: the planner's memory is cleared,"
    " and earlier objects are dropped": ("localisation jumped by … m within … s",),
    "The car stops until there were fewer than 3 jumps in 2 s. Check for two publishers of odometry": (
        "localisation jumped … times",
    ),
    "Check the sender; acceleration counts as 0 meanwhile. Up to 20 m/s^2 is accepted": (
        "acceleration is NaN",
        "acceleration of … m/s^2",
    ),
    "Update `autoware_adapi_v1_msgs` here or there; the mode before stays in use": ("operation mode … does not exist",),
    "Check the sender of the vehicle's turn signal; it is not used": ("turn signal … does not exist",),
    "Correct the publisher of `~/input/max_velocity`; the limit before stays in use": ("a limit of … m/s cannot",),
    # --- objects, drivable space
    "Check the perception: what is left out, and how often, after `ignored:`": (
        "longer than … m",
        "faster than … m/s",
        "farther than … km",
        "beyond the nearest",
        "points not finite",
    ),
    "Correct the publisher of the point cloud: x, y and z as floats": ("obstacles: the cloud", "obstacles: field"),
    "Correct the publisher of the grid. Until then the drivable space is unknown, and plans are not checked "
    "against it": (
        "the drivable grid is in frame",
        "the drivable grid holds",
        "the drivable grid has no usable origin",
        "the drivable grid has a resolution",
        "outside of the drivable grid",
    ),
    "Publish a coarser or smaller grid": ("cells around the car",),
    "Wait: seconds for a city": (
        "the map is being read",
        "of the map is being computed",
        "drivable: not requested yet",
    ),
    "The map is another town's, or in another frame than odometry; the drivable space is unknown": (
        "has no road near the car",
        "is beside the roads of",
    ),
    # --- route and map
    "Set a goal": ("publish a path of at least two", "the route has no segments"),
    "Correct the publisher of the path": ("the route holds NaN or infinity",),
    "Correct the publisher of the route": ("start or goal holds NaN",),
    "Set a goal further away": ("all points of the route are equal",),
    "Set another goal": ("the route's goal is not ahead",),
    "The car stops. Set a goal ahead of the car, or publish a longer path": ("past the end of its route",),
    "Start Autoware's map loader, or give the map's `.osm` file: `lanelet_map:=`. If the map is only used for the"
    " drivable space, the car drives without it, unchecked": ("the map has not been received yet",),
    "The sentence gives the reason; see [troubleshooting](troubleshooting.md#the-map-cannot-be-read)": (
        "the map cannot be read",
        "it is malformed, or takes more than",
        "it holds no lanelet",
        "it has points at NaN",
        "lanelet2 says",
        "lanelet2 does not know",
        "was ended by",
        "ended with code",
        "does not start like a map",
        "do not fit together",
    ),
    "Mission planner and reflectdrive have different maps, or the map has changed since the route was planned": (
        "the route's lanelet … is not in",
        "set inputs.lanelet_map to the map that",
        "plan the route again on this map",
    ),
    "The map file lacks `local_x`, `local_y`, or its origin is wrong: [Routes from lanelets](on_a_car.md#routes-"
    "from-lanelets)": ("from its first lanelet", "check inputs.lanelet_map", "check that map, route and odometry"),
    "The route's lanelets are not consecutive on this map": ("the route jumps", "… m from … to …"),
    "Correct the map": ("has no length: correct the map",),
    "The car stops. Localisation jumped, or the route is of another place: drive the car back or set a goal from where "
    "it is. On [roads of many lanes](on_a_car.md#distance-from-the-route) raise `route.max_distance_m`": (
        "m from its route, at most",
    ),
    "Likewise: the car is near the limit and was beyond it": ("from its route, which it had left",),
    "The car stops. Publish the points of a path in driving direction, or set a goal that needs no turn on the spot": (
        "the car faces against its route",
    ),
    "The car stops. Check that map and odometry are of one place and frame. A planner does not drive through car "
    "parks: drive the car to a lane": ("outside of every lanelet",),
    "Nothing at once: the readable one before it is used. Correct the sender": ("before it stays in use",),
    # --- lights
    "Start the map again, or its sender: the car does not stop for these lights": ("their stop lines are unknown",),
    "The light messages stopped, or localisation jumped: a red that was seen stays red until it is seen again, or for "
    "this time": ("groups that were red count as red",),
    "The recognition has another map than this node: its lights have other ids and are not used": (
        "groups belong to no lanelet",
    ),
    "Draw the stop lines in the map, as `ref_line` of the regulatory elements": ("have no stop line",),
    "The planner's own plan would run a red light: it is slowed, carried or stopped as the table above says": (
        "the stop line of a red light",
    ),
    # --- the plan
    "No valid objects: the plan is published, but not checked against agents (`check` lists what it was checked "
    "against)": ("unchecked: no objects",),
    "Value `check`: what the plan was checked against, for how long it is safe, and how much room it leaves": (
        "objects (…",
        "unclassified obstacles",
        "… m of room",
        "drivable space (…",
        "traffic lights (…",
        "… for … s against …",
        "unsafe after … s",
    ),
    "LATE. Occasionally: nothing. Always: a faster model or machine, or a longer `engine.deadline_ms`": (
        "the plan took … ms",
    ),
    "UNSAFE. The place is in the ego frame: x forward, y left": ("the plan hits the object",),
    "UNSAFE. Check the drivable space where the car stands": ("the plan leaves the drivable space",),
    "Localisation jumped, or the speed in the odometry is wrong": ("from where the car will be",),
    "INFEASIBLE. The plan exceeds one of the limits `guard.*`; the sentence has value and limit": (
        "the plan … … …, allowed",
        "the plan drives backwards",
        "drives backwards at",
        "is as fast as",
        "speeds up at",
        "turns with a lateral acceleration of",
        "turns with a curvature of",
    ),
    "An error in this package: please report it": ("before its observation",),
    "The planner planned to stay where nothing holds the car. `engine.start_after_s: 0` leaves the start to the service"
    " `~/service/start`": ("the plan along the route is sent",),
    "Nothing: limiting the lateral shift would have made the plan less safe or infeasible": (
        "the lateral shift is not limited",
        "the plan is unsafe after … s",
        "the plan has less clearance",
    ),
    "Check plans with care: [another camera rig](on_a_car.md#another-camera-rig). If it is wrong, set "
    "`cameras.domain`": ("the network was trained on",),
    "A network needs two instants, 0.5 s apart. At the start: nothing. Later: images are lost, see the DDS profile": (
        "the older images are missing",
    ),
    "Publish a shorter instruction": ("characters: it was cut", "words with command and limit"),
    "Use the network's vocabulary of navigation instructions; other words have no effect": ("unknown words: '…'",),
    "Nothing in the first second. Later: the sender of objects or map has stopped": (
        "lanes are unknown",
        "objects are unknown",
        "objects have no history",
        "the lanes of the route are unknown",
    ),
    "Nothing: the network reads a fixed number of them": ("the nearest … are read",),
    "The car is off its route: set a goal from where it is": (
        "the route is … m away",
        "Observation.route is more than",
        "Observation.route is … m away",
    ),
    "INFEASIBLE. The network was trained with other cameras: set `cameras.names`": (
        "Observation.cameras holds",
        "images were given, expected",
    ),
    "INFEASIBLE. Localisation sends impossible values: check it": ("EgoState.… is",),
    "INFEASIBLE. Model file and planner do not belong together: set `model.file` to a network of the planner's kind": (
        "has no network",
        "needs a network of",
        "needs the capability",
        "need the capability",
        "lacks the capability",
        "the network has no vocabulary",
        "the graphs take one scene",
        "has no guidance",
    ),
    "INFEASIBLE. Inference failed: restart the node; if it persists, report it with the log": (
        "failed in ONNX Runtime",
        "if it persists, restart the node",
        "keys and values of",
        "CUDA says",
        "TensorRT does not run",
        "tensor … is … …, expected",
    ),
    "INFEASIBLE. Close other programs that use the GPU": ("the GPU is out of memory",),
    "INFEASIBLE. An error in this package, or a value that a message should not have: the traceback is in the "
    "log. Please report it": (
        "the planner failed with",
        "Observation.route has 1 point",
        "Observation.route is empty",
        "the route is empty",
        "Observation.route_limits_mps",
        "Candidates.points",
        "Observation.history",
        "Observation.… has",
        "Agents.",
        "Trajectory.",
        "holds NaN or infinity",
        "expected a finite number",
        "expected more than 0",
        "….… has shape",
        "….… holds …, expected whole numbers",
        "is not an array of numbers",
        "expected whole nanoseconds",
        "Plan.scores",
        "Plan.planners",
        "TokenTrace.",
        "CameraFrame.",
        "Forecast.",
        "AgentTracks.",
        "Correction.",
        "relax_profiles got",
        "the plan ends at",
        "noisy futures are",
    ),
    "Value `change`: how the planner's plan was varied for a better driving score": (
        "m/s^2 slower",
        "at half time",
        "m to the",
    ),
    "Another of several planners plans; the reason follows": ("… has no plan: …",),
    "Value `full_step_reason`: why the last step planned from scratch": (
        "every step is a full step",
        "there is no plan to edit",
        "a full step is due",
        "the command changed",
        "s since the last plan",
        "the car starts",
        "the last plan has a confidence",
        "localisation jumped by … m",
        "from where the last plan has it",
    ),
    "At the start. Model, backend and installation do not fit: the sentence says how": (
        "TensorRT does not bind",
        "TensorRT does not know the shape",
        "TensorRT returns no",
        "a vocabulary has different words",
        "build it, which takes minutes",
        "but TensorRT runs on GPUs",
        "but torch finds no GPU",
        "cannot be imported (…)",
        "do not belong together",
        "has wrong inputs.words",
        "is in bf16, which ONNX Runtime does not run",
        "is no graph that ONNX Runtime",
        "is too old: … or later",
        "make test-tensorrt fetches it",
        "on Thor it is JetPack's",
        "the installed CandidateTrajectory has",
        "there is no GPU cuda",
        "there is no NVIDIA driver",
        "this ONNX Runtime has no CUDA",
        "which no exported graph has",
    ),
    # --- candidates of other planners
    "The reason follows; `check.unchecked` passes such candidates on or drops them": ("unchecked and …: …",),
    "UNSAFE candidate, and neither braking along its path nor along the route is safe: it is passed on with score 0": (
        "no safe change was found",
    ),
    # --- the node
    "The watchdog stopped the car: the planner hangs": ("the planner has been busy",),
    "The watchdog stopped the car: check the anchor camera": ("no new image",),
    "Nothing, at the start: the first images have not arrived": ("no step yet",),
    "Only in the log: the sentence gives the reason": ("callback failed: …", "no plan is published: …"),
    "Only in the log: the publisher is best effort where the node requires reliable, or volatile where it "
    "requires transient local": ("its QoS cannot reach us",),
    "An error in this package while it started: the traceback is in the log. Please report it": (
        "the start failed with",
    ),
}

PARTS = frozenset(  # strings that are a part or a value of other sentences
    {
        "Autoware's map",
        "CUDA graphs",
        "No regulatory element found that implements rule",
        "ONNX Runtime … on …, … thread…",
        "TensorRT for RTX",
        "TensorRT … on …, …",
        "\\d+(?:\\.\\d+)?|\\w+",
        "\\s*(\\d+(?:\\.\\d+)?)\\s*(km/h|kmh|mph|)\\s*",
        "a height",
        "a position",
        "a speed",
        "a speed to the side",
        "a tilt",
        "a yaw rate",
        "brakes at",
        "camera rig",
        "camera …: camera_info …",
        "choose another type",
        "config/fastdds.xml or config/cyclonedds.xml",
        "delta is …, expected 0 or more",
        "drivable space",
        "driven over",
        "engine from ….plan (delete it and …)",
        "failed to initialize rcl:",
        "graph …: tensor … …",
        "inputs.drivable_type is map",
        "inputs.lanelet_map is …",
        "inputs.route_type is lanelet",
        "is empty",
        "is not among its inputs",
        "its reader …",
        "launched in parts",
        "launched in parts (…)",
        "leave it empty",
        "left out",
        "no TF32",
        "no image",
        "no orientation",
        "no size",
        "not finite",
        "or raise inputs.…",
        "or set inputs.lanelet_map to the map's .osm file",
        "passed on",
        "passed through",
        "reflectdrive engine",
        "replaced by a stop along its path",
        "room to run …",
        "search.ids has shape …, expected (…,)",
        "search.waypoint is …, expected 0..…",
        "send the route as nav_msgs/Path",
        "size_m is … and resolution_m …, expected positive metres",
        "space is a …, expected the Polygon or MultiPolygon that `union_polygons` makes",
        "tensor(bool)",
        "tensor(float)",
        "tensor(int64)",
        "tensor(uint8)",
        "the goal",
        "the map",
        "the route",
        "torch … on …",
        "unchecked: no …",
        "was not given",
        "without a reason",
        "… has no area",
        "… has shape …, expected (3 or more, 2)",
        "… holds no polygon, expected at least one",
        "… is not a simple polygon: …",
        "… m clear",
    }
)
