"""The live page: true values for every topic, a page that shows them, and a server that goes away."""

import http.client
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace

import browser
import cv2
import node_car
import numpy as np
import pytest
from autoware_planning_msgs.msg import Trajectory as AutowareTrajectory
from diagnostic_msgs.msg import DiagnosticArray
from messages import CAMERAS, SECOND_NS, camera_info, odometry, predicted_objects, route, tf_static
from nav_msgs.msg import Odometry
from rclpy.node import Node
from rclpy.serialization import deserialize_message
from reflectdrive.msg import GoalHypotheses, PlannerDebug, PlannerStatus

from reflectdrive_ros import pages
from reflectdrive_ros.__main__ import main
from reflectdrive_ros.core.config import Config, VehicleConfig
from reflectdrive_ros.core.domain import Plan, Trajectory
from reflectdrive_ros.core.tokens import ROUTE_DRIVEFINE, TokenLayout
from reflectdrive_ros.demo import live, live_view
from reflectdrive_ros.demo.live_topics import OTHER, Listener, LiveState, camera_name
from reflectdrive_ros.demo.world_node import new_context
from reflectdrive_ros.ros import convert, outputs
from reflectdrive_ros.ros.inputs.channel import InputStatus, Level
from reflectdrive_ros.ros.topics import NODE_NAME

# --- the page's state ------------------------------------------------------------------------------------------------


LAYOUT = TokenLayout()
POSES = tuple((round(t * SECOND_NS), np.array([5.0 * t, 0.0, 0.0])) for t in (9.8, 9.9, 10.0))


def live_state(images=(), infos=(), transforms=(), **newest):
    named = (dict(images), dict(infos), dict(transforms))
    return LiveState("/car/reflectdrive", newest, *named, POSES, (), 0.1, 10.0, 0)


def as_json(live, layout=LAYOUT):
    return json.loads(json.dumps(live_view.state(live, VehicleConfig(), layout), allow_nan=False))


def test_before_the_first_message_the_page_has_gaps_and_no_errors():
    empty = as_json(LiveState("", {}, {}, {}, {}, (), (), None, 0.0, 0))
    assert [empty[key] for key in ("plan", "status", "silent_s", "draft")] == [None] * 4
    assert [empty[key] for key in ("agents", "route", "cameras", "diagnostics", "goals", "stages")] == [[]] * 6
    assert empty["tokens"] == {"before": [], "after": [], "confidence": [], "rounds": []}


def test_the_plan_is_shown_from_where_the_ego_stood_at_its_stamp():
    poses = np.column_stack([0.5 * np.arange(1, 81), np.zeros(80), np.zeros(80)])
    plan = Plan(round(9.95 * SECOND_NS), np.array([49.75, 0.0, 0.0]), Trajectory(poses, 0.1))
    page_plan = as_json(live_state(trajectory=outputs.trajectory(plan, Config())))["plan"]
    assert page_plan["ego"] == pytest.approx([49.75, 0.0, 0.0])
    assert page_plan["dt"] == pytest.approx(0.1)
    np.testing.assert_allclose(np.array(page_plan["points"])[:, 0], 49.75 + poses[:, 0], atol=1e-3)
    np.testing.assert_allclose(np.array(page_plan["points"])[:, 3], 5.0, atol=1e-3)


def test_a_trajectory_of_another_node_is_shown_while_it_is_fresh():
    plan = Plan(round(9.9 * SECOND_NS), np.array([49.5, 0.0, 0.0]), Trajectory(np.full((80, 3), 1.0), 0.1))
    messages = {OTHER + "/planning/trajectory": outputs.trajectory(plan, Config())}
    (trajectory,) = as_json(live_state(**messages))["others"]
    assert trajectory["topic"] == "/planning/trajectory"
    assert trajectory["points"][0][:2] == [50.5, 1.0]
    later = replace(live_state(**messages), poses=(*POSES, (round(11.5 * SECOND_NS), np.zeros(3))))
    assert as_json(later)["others"] == []


def test_tokens_and_candidates_come_from_the_debug_message():
    message = PlannerDebug(candidate_count=3, points_per_candidate=10, point_interval=0.1)
    message.candidate_x = [float(value) for value in range(30)]
    message.candidate_y = [0.0] * 30
    message.candidate_heading = [0.0] * 30
    message.candidate_score = [0.9, 0.5, float("nan")]
    message.tokens_before_edit, message.tokens_after_edit = [333, 340], [333, 341]
    message.round_tokens, message.token_confidence = [333, 340, 333, 342], [0.5, float("nan")]
    goals = GoalHypotheses(x=[1.0, 2.0], y=[3.0, 4.0], probability=[0.5, 0.25], chosen=1)
    state = as_json(live_state(debug=message, goals=goals))
    assert [rival["score"] for rival in state["candidates"]] == [0.5, None]  # the first is the plan itself
    assert state["candidates"][0]["points"] == [[14.0, 0.0], [19.0, 0.0]]  # every half second
    assert state["tokens"]["before"] == [333, 340]
    assert state["tokens"]["after"] == [333, 341]
    assert state["tokens"]["rounds"] == [[333, 342]]
    assert state["tokens"]["confidence"] == [0.5, None]  # a repair wrote the last one
    assert state["goals"] == [[1.0, 3.0, 0.5, False], [2.0, 4.0, 0.25, True]]


def test_the_draft_is_shown_from_the_ego_of_its_message_with_what_the_rounds_corrected():
    points = np.stack([np.stack([3.0 * np.arange(1, 9), np.zeros(8)], axis=-1)] * 2)
    points[1, 2, 1] = 0.6
    ids = LAYOUT.encode(points)
    message = PlannerDebug(edit_rounds=1, round_tokens=ids.ravel().tolist(), round_confidence=[0.5] * 16 + [0.25] * 16)
    message.header.stamp = outputs.time_message(round(9.95 * SECOND_NS))
    draft = as_json(live_state(debug=message))["draft"]
    assert draft["ego"] == pytest.approx([49.75, 0.0, 0.0])
    assert draft["points"] == points[0].tolist()
    assert draft["corrections"] == [[1, 3, "y", 0.0, 0.6, 0.5, 0.25]]
    message.round_tokens, message.round_confidence = [333] * 6, [0.5] * 6  # of another layout
    assert as_json(live_state(debug=message))["draft"] is None
    # tokens along the route say where the waypoints are on it, and the page does not have it
    message = PlannerDebug(round_tokens=[240] * 16, round_confidence=[0.5] * 16, draft_x=[3.0, 6.0], draft_y=[0.0, 0.5])
    live = live_state(debug=message)
    assert as_json(live, ROUTE_DRIVEFINE)["draft"]["points"] == [[3.0, 0.0], [6.0, 0.5]]
    message.draft_y = [0.0]
    assert as_json(live, ROUTE_DRIVEFINE)["draft"] is None


@browser.needs_node
@pytest.mark.parametrize("rounds", [0, 1], ids=["without tokens", "with a correction"])
def test_the_script_of_the_page_draws_a_state_without_an_error(tmp_path, rounds):
    message = PlannerDebug(candidate_count=0, tokens_after_edit=[333] * 16 * rounds, edit_rounds=rounds)
    message.round_tokens = ([333] * 31 + [335]) * rounds
    message.round_confidence = ([0.5] * 31 + [0.75]) * rounds
    message.header.stamp = outputs.time_message(round(9.95 * SECOND_NS))
    status = PlannerStatus(planner="reflectdrive2", step_kind="full")
    (tmp_path / "live.html").write_text(pages.page("live.html"))
    (tmp_path / "state.json").write_text(json.dumps(as_json(live_state(debug=message, status=status))))
    texts = browser.draw(tmp_path / "live.html", tmp_path / "state.json")["texts"]
    assert not [text for text in texts if "does not answer" in text]  # what the page writes when its script fails
    assert ("Corrections of the draft" in texts) == ({"y 8", "0.6 m", "75 %"} <= set(texts)) == bool(rounds)


def test_road_users_and_route_are_those_near_the_ego():
    objects = predicted_objects(10.0, (60.0, 3.0, 0.5, 5.0, 4.5))
    path = route([(float(x), 0.0) for x in range(-500, 500, 10)])
    state = as_json(live_state(objects=objects, route=path))
    assert state["agents"][0][:3] == pytest.approx([60.0, 3.0, 0.5], abs=0.01)
    xs = np.array(state["route"])[:, 0]
    assert xs.min() >= 50 - live_view.ROUTE_RANGE_M
    assert xs.max() <= 50 + live_view.ROUTE_RANGE_M


def test_cameras_are_listed_left_to_right_with_their_lens_where_it_has_arrived():
    mounts = convert.static_transforms(tf_static())
    frames = {name: next(frame for frame in mounts if frame.startswith(name + "_opt")) for name in CAMERAS}
    images = {name: (10 * SECOND_NS, frames[name]) for name in reversed(CAMERAS)}
    infos = {name: camera_info(name) for name in CAMERAS if name != "front_right"}
    cameras = as_json(live_state(images, infos, mounts))["cameras"]
    by_name = {camera["name"]: camera for camera in cameras}
    assert by_name.keys() == set(CAMERAS)
    assert by_name["front_right"]["lens"] is None  # it has no camera_info: displayed without the plan
    assert by_name["front"]["lens"]["ego"] == pytest.approx([50.0, 0.0, 0.0])
    assert by_name["front"]["stamp_ns"] == str(10 * SECOND_NS)


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("/sensing/camera/front/image/compressed", "front"),
        ("/planning/reflectdrive/reflectdrive/input/camera/front_left/image", "front_left"),
        ("/cam0/image_raw", "cam0"),
        ("/sensing/camera/front/camera_info", "front"),
    ],
)
def test_a_camera_is_named_after_its_topic(topic, name):
    assert camera_name(topic) == name


def test_diagnostics_shown_are_those_of_the_planner_that_is_shown():
    context = new_context()
    listener = Listener(context)
    listener._planner = "/left/reflectdrive"
    hear = listener._taking("diagnostics", "")
    try:
        for node in ("/left/reflectdrive", "/right/reflectdrive", NODE_NAME, "lidar_driver"):
            line = InputStatus("planner", Level.OK, f"said by {node}", {})
            hear(deserialize_message(outputs.diagnostics([line], 0, node), DiagnosticArray))
        assert as_json(listener.live_state())["diagnostics"] == [["planner", 0, "said by /left/reflectdrive"]]
    finally:
        listener.destroy_node()
        context.try_shutdown()


# --- the running page ------------------------------------------------------------------------------------------------


def fetched(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.headers["Content-Type"], answer.read()


@contextmanager
def drive_page(tmp_path):
    """A real node that drives along a straight road, and its page."""
    ending = threading.Event()
    with node_car.car(tmp_path, ()) as car, live.serve(0, VehicleConfig()) as page:

        def drive():
            while not ending.wait(0.1):
                car.send(objects=False)
                near = predicted_objects(car.now_s(), (0.5 * car.tick + 30.0, 4.0, 0.0, 5.0, 4.5))
                car.harness.inputs["objects"].publish(near)

        thread = threading.Thread(target=drive)
        thread.start()
        try:
            yield page
        finally:
            ending.set()
            thread.join()


def until(page, condition, timeout_s=30.0):
    deadline = time.perf_counter() + timeout_s
    while time.perf_counter() < deadline:
        state = json.loads(fetched(page.url + "state.json")[1])
        if condition(state):
            return state
        time.sleep(0.2)
    pytest.fail(f"the page never showed it; last: {str(state)[:2000]}")


@pytest.mark.dds
def test_every_endpoint_answers_with_inputs_and_outputs_of_the_node(tmp_path):
    with drive_page(tmp_path) as page:
        assert page.server_address[0] == "127.0.0.1"
        kind, body = fetched(page.url)
        assert kind == "text/html; charset=utf-8"
        assert b"__DRAWING__" not in body
        assert b"http" not in body  # nothing from elsewhere

        def complete(state):
            has_cameras = all(camera["lens"] for camera in state["cameras"]) and len(state["cameras"]) == 3
            return has_cameras and state["plan"] and state["diagnostics"] and state["stages"] and state["agents"]

        state = until(page, complete)
        assert state["planner"] == "/planning/reflectdrive/reflectdrive"
        assert state["status"]["planner"] == "constant_velocity"
        assert state["speed"] == 5.0
        assert len(state["plan"]["points"]) == 80
        assert {name for name, _, _ in state["diagnostics"]} >= {"image front", "odometry", "planner"}
        assert state["tokens"]["after"] == []  # this planner has none
        camera = state["cameras"][1]
        kind, body = fetched(f"{page.url}camera/{camera['name']}/{camera['stamp_ns']}.jpg")
        assert kind == "image/jpeg"
        assert cv2.imdecode(np.frombuffer(body, np.uint8), cv2.IMREAD_COLOR) is not None
        later = until(page, lambda now: now["status"]["sequence"] > state["status"]["sequence"] + 3)
        assert later["here"][0] > state["here"][0]
        assert len(later["history"]) > 3
        assert json.loads(fetched(page.url + "road.json")[1]) == {"version": 0, "rings": []}
        for wrong in ("nothing", "camera/front/1.jpg", "camera/../front.jpg", "camera/front/x.jpg"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                fetched(page.url + wrong)
        url = page.url
    with pytest.raises(urllib.error.URLError):
        fetched(url)


@pytest.mark.dds
@browser.needs_chromium
def test_a_browser_shows_images_road_and_plan(tmp_path):
    """A screenshot in headless Chromium: the regions where things are drawn are not empty."""
    with drive_page(tmp_path) as page:
        until(page, lambda state: state["plan"] and len(state["cameras"]) == 3)
        image = tmp_path / "page.png"
        browser.run(page.url, tmp_path, "--window-size=1280,720", f"--screenshot={image}", budget_ms=3000)
    screenshot = cv2.imread(str(image)).astype(int)
    assert screenshot.shape[:2] == (720, 1280)
    cameras, above = screenshot[60:260], screenshot[300:700, 20:500]
    assert [cameras[:, left : left + 380].std() > 3 for left in (25, 450, 870)] == [True] * 3
    colourful = above.max(axis=2) - above.min(axis=2) > 60  # the plan's ribbon
    assert colourful.sum() > 300


def statuses(page, request, count=1):
    """Of the answers to the same request, sent `count` times on one connection; each has a body."""
    answers = []
    with socket.create_connection(page.server_address, timeout=5.0) as connection:
        for _ in range(count):
            connection.sendall(request)
            answered = http.client.HTTPResponse(connection)
            answered.begin()
            assert (answered.status == 200) == (b"planner" in answered.read())
            answers.append(answered.status)
    return answers


@pytest.mark.dds
def test_an_invalid_stamp_is_status_404_and_the_connection_stays(capfd):
    wrong = [b"\xb2", b"\xb9.jpg", b"%B2", b"9" * 5000, b"9" * 5000 + b".jpg", b"-1", b"1_0", b".jpg", b"1.jpg.jpg"]
    with live.serve(0, VehicleConfig()) as page:
        for stamp in wrong:
            request = b"GET /camera/front/" + stamp + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
            assert statuses(page, request, 2) == [404, 404], stamp
    assert capfd.readouterr().err == ""


@pytest.mark.dds
def test_of_two_planners_the_requested_one_is_displayed_with_the_trajectory_of_the_other():
    """Shadow mode: the car follows another node."""
    context = new_context()
    nodes = [Node("reflectdrive", namespace=name, context=context) for name in ("/first", "/shadow")]
    kinds = {"~/output/status": PlannerStatus, "~/output/trajectory": AutowareTrajectory}
    senders = [[node.create_publisher(kind, name, 1) for name, kind in kinds.items()] for node in nodes]
    publisher = nodes[0].create_publisher(Odometry, "/odometry", 1)
    nodes[1].create_subscription(Odometry, "/odometry", lambda _: None, 1)
    plan = Plan(10 * SECOND_NS, np.zeros(3), Trajectory(np.zeros((80, 3)), 0.1))
    try:
        with live.serve(0, VehicleConfig(), node="/shadow/reflectdrive") as page:

            def sent(state):
                publisher.publish(odometry(10.0))
                for status, trajectory in senders:
                    status.publish(PlannerStatus())
                    trajectory.publish(outputs.trajectory(plan, Config()))
                return state["plan"] and state["others"]

            state = until(page, sent)
        assert state["planner"] == "/shadow/reflectdrive"
        assert [other["topic"] for other in state["others"]] == ["/first/reflectdrive/output/trajectory"]
    finally:
        for each in nodes:
            each.destroy_node()
        context.try_shutdown()


@pytest.mark.dds
def test_topics_are_found_of_a_planner_whose_later_endpoints_were_never_announced(monkeypatch):
    """As Fast DDS loses the announcement at times: the graph then knows the endpoint and not its node."""
    endpoints = Node.get_subscriptions_info_by_topic

    def unannounced(node, topic):
        infos = endpoints(node, topic)
        for info in infos:
            info.node_name, info.node_namespace = "_NODE_NAME_UNKNOWN_", "_NODE_NAMESPACE_UNKNOWN_"
        return infos

    monkeypatch.setattr(Node, "get_subscriptions_info_by_topic", unannounced)
    contexts = [new_context(), new_context()]
    planner, other = (
        Node(name, context=context) for name, context in zip(("reflectdrive", "driver"), contexts, strict=True)
    )
    status_publisher = planner.create_publisher(PlannerStatus, "~/output/status", 1)
    planner.create_subscription(Odometry, "/odometry", lambda _: None, 1)
    other.create_subscription(Odometry, "/other_odometry", lambda _: None, 1)
    publishers = [other.create_publisher(Odometry, topic, 1) for topic in ("/odometry", "/other_odometry")]
    try:
        with live.serve(0, VehicleConfig()) as page:

            def sent(state):
                status_publisher.publish(PlannerStatus())
                for publisher, x in zip(publishers, (3.0, 7.0), strict=True):
                    publisher.publish(odometry(10.0, x=x))
                return state["here"]

            assert until(page, sent)["here"][0] == 3.0
            time.sleep(1.0)  # two more searches
            assert until(page, sent)["here"][0] == 3.0
    finally:
        for node, context in zip((planner, other), contexts, strict=True):
            node.destroy_node()
            context.try_shutdown()


def status(page, host, version="1.1"):
    """Of the answer to a request for the state, with this Host line or lines."""
    return statuses(page, f"GET /state.json HTTP/{version}\r\n{host}\r\n".encode())[0]


@pytest.mark.dds
def test_only_requests_to_this_machine_are_answered():
    """A page of another site whose name comes to resolve to 127.0.0.1 would read what the cameras see."""
    with live.serve(0, VehicleConfig()) as page:
        port = page.server_address[1]
        for host in (f"127.0.0.1:{port}", f"localhost:{port}", "LocalHost", "127.0.0.1:9000"):
            assert status(page, f"Host: {host}\r\n") == 200, host
        foreign = ("evil.example", f"evil.example:{port}", f"127.0.0.1.evil.example:{port}", "127.0.0.2")
        for host in (*foreign, f"user@localhost:{port}", f"localhost:{port}, evil.example", "localhost:x", ""):
            assert status(page, f"Host: {host}\r\n") == 421, host
        assert status(page, "") == 421
        assert status(page, "", "1.0") == 421
        assert status(page, "Host: localhost\r\nHost: evil.example\r\n") == 421


def closed_after_s(connection, piece, every_s=0.05):
    """Seconds until the server closes a connection that sends a piece again and again; at most 5."""
    start_s = time.perf_counter()
    connection.settimeout(every_s)
    while time.perf_counter() - start_s < 5.0:
        try:
            if piece:
                connection.sendall(piece)
            if connection.recv(1000) == b"":
                break
        except TimeoutError:
            continue
        except ConnectionError:
            break
    return time.perf_counter() - start_s


PARTIAL_REQUESTS = {  # what is sent at first, and again and again
    "nothing": (b"", b""),
    "half a line": (b"GET / HT", b""),
    "half a header": (b"GET / HTTP/1.1\r\nHost:", b""),
    "byte by byte": (b"", b"G"),
    "an endless header": (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: ", b"a"),
    "headers": (b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"A: a\r\n"),
    "one request": (b"GET /state.json HTTP/1.1\r\nHost: localhost\r\n\r\n", b""),
}


@pytest.mark.dds
def test_a_connection_without_a_whole_request_is_closed_in_time(monkeypatch, capfd):
    assert 1.0 < live.REQUEST_S <= 60.0
    assert len(PARTIAL_REQUESTS) < live.CONNECTIONS
    monkeypatch.setattr(live, "REQUEST_S", 0.5)

    def seconds(partial):
        with socket.create_connection(page.server_address, timeout=5.0) as connection:
            connection.sendall(partial[0])
            return closed_after_s(connection, partial[1])

    with live.serve(0, VehicleConfig()) as page, ThreadPoolExecutor(len(PARTIAL_REQUESTS)) as clients:
        times_s = dict(zip(PARTIAL_REQUESTS, clients.map(seconds, PARTIAL_REQUESTS.values()), strict=True))
    assert all(0.3 < time_s < 3.0 for time_s in times_s.values()), times_s
    assert capfd.readouterr().err == ""


@pytest.mark.dds
def test_clients_that_read_nothing_or_are_too_many_do_not_keep_others_out_for_long(monkeypatch, capfd):
    monkeypatch.setattr(live, "REQUEST_S", 1.0)
    monkeypatch.setattr(live, "CONNECTIONS", 3)
    with live.serve(0, VehicleConfig()) as page:
        greedy = [socket.socket() for _ in range(3)]
        for each in greedy:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            each.connect(page.server_address)
            each.settimeout(0.5)
            with suppress(TimeoutError, ConnectionError):  # until the server takes no more
                each.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 4000)
        start_s = time.perf_counter()
        with pytest.raises(OSError):  # status 503, or a reset where that overtakes it
            fetched(page.url)
        while time.perf_counter() - start_s < 10.0:
            with suppress(OSError):
                assert fetched(page.url)[0] == "text/html; charset=utf-8"
                break
            time.sleep(0.1)
        assert time.perf_counter() - start_s < 10.0
        for each in greedy:
            each.close()
    assert capfd.readouterr().err == ""


@pytest.mark.dds
def test_a_port_in_use_is_one_sentence(tmp_path, capsys):
    with live.serve(0, VehicleConfig()) as page:
        port = str(page.server_address[1])
        assert live.main(["--port", port]) == 2
        assert main(["demo", "--live", "--port", port, "--out", str(tmp_path)]) == 2
    sentence = f"port {port} cannot be used: Address already in use; choose another with --port"
    assert capsys.readouterr().err.strip().splitlines() == [f"live: {sentence}", sentence]


def test_a_domain_that_dds_does_not_have_is_one_sentence(capsys, monkeypatch):
    monkeypatch.setenv("ROS_DOMAIN_ID", "abc")
    assert live.main([]) == 2
    assert capsys.readouterr().err == "live: ROS_DOMAIN_ID is 'abc', expected a number from 0 to 232\n"
