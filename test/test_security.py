"""Nothing is run that came as data, nothing reaches for the network, and the node may do what it does and no more."""

import ast
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import rclpy
from rclpy.context import Context

from reflectdrive_ros.core.config import Config, InputsConfig, as_yaml, override_dotted
from reflectdrive_ros.demo import live
from reflectdrive_ros.ros import sros2_policy, topics
from reflectdrive_ros.ros.check_node import CheckNode
from reflectdrive_ros.ros.launch_topics import CHECK_INPUTS, CHECK_SETTINGS, INPUTS
from reflectdrive_ros.ros.node import PlannerNode
from reflectdrive_ros.ros.planning_core import PlanningCore

ROOT = Path(__file__).parents[1]
LANELETS = Config(inputs=InputsConfig(route_type="lanelet"))  # whose map comes by its topic
POLICY = ROOT / "config" / "sros2" / "reflectdrive.policy.xml"
MODULES = sorted((ROOT / "reflectdrive_ros").rglob("*.py"))

RUNS_DATA = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
NETWORK = {"socket", "socketserver", "ssl", "urllib", "http", "requests", "httpx", "aiohttp", "ftplib", "smtplib"}
NETWORK |= {"telnetlib", "poplib", "imaplib", "xmlrpc", "asyncio", "websockets", "huggingface_hub"}
ALLOWED = {("demo/live.py", "http")}  # the live page's server, which answers this machine only
ALLOWED |= {("demo/live.py", "socket")}  # reads a request until its time is up
ALLOWED |= {("infra/cluster.py", "socket")}  # whether the address that --cluster names answers
BUILTINS = {"eval", "exec", "compile", "__import__"}


def breaches(module, text):
    """One line for each forbidden import or call in a module's text."""
    lines = []
    for node in ast.walk(ast.parse(text)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module]
        for name in names:
            library = name.split(".")[0]
            if library in RUNS_DATA | NETWORK and (module, library) not in ALLOWED:
                lines.append(f"{module}:{node.lineno} imports {name}")
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        words = {word.arg: ast.unparse(word.value) for word in node.keywords}
        if called in BUILTINS:
            lines.append(f"{module}:{node.lineno} calls {called}")
        if words.get("allow_pickle", "False") != "False" or words.get("shell", "False") != "False":
            lines.append(f"{module}:{node.lineno} calls {called} with {words}")
        if called == "torch.load" and words.get("weights_only") != "True":
            lines.append(f"{module}:{node.lineno} calls torch.load without weights_only=True")
        if called in ("yaml.unsafe_load", "yaml.full_load", "os.system", "os.popen"):
            lines.append(f"{module}:{node.lineno} calls {called}")
    return lines


@pytest.mark.meta
@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.stem)
def test_no_module_runs_data_or_reaches_for_the_network(file):
    assert breaches(str(file.relative_to(ROOT / "reflectdrive_ros")), file.read_text()) == []


@pytest.mark.meta
@pytest.mark.parametrize(
    "planted",
    [
        "import pickle",
        "def f():\n    from urllib.request import urlopen",
        "import http.client",
        "eval('1')",
        "np.load(file, allow_pickle=True)",
        "subprocess.run(text, shell=True)",
        "torch.load(file)",
    ],
)
def test_a_planted_breach_is_found(planted):
    assert len(breaches("planning/guard.py", planted)) == 1


def test_the_live_page_answers_this_machine_only():
    assert live.HOST == "127.0.0.1"


# --- SROS 2 ----------------------------------------------------------------------------------------------------------


def test_the_policy_is_made_from_the_topic_table():
    command = "python -m reflectdrive_ros.ros.sros2_policy > config/sros2/reflectdrive.policy.xml"
    assert POLICY.read_text() == sros2_policy.policy(Config()), f"run {command}"


def allowed(text, right, node="reflectdrive"):
    (profile,) = (entry for entry in ElementTree.fromstring(text).iter("profile") if entry.get("node") == node)
    return {entry.text for group in profile if group.get(right) == "ALLOW" for entry in group}


def test_no_wildcard_and_no_other_right():
    root = ElementTree.parse(POLICY).getroot()
    assert root.get("version") == "0.2.0"
    profiles = root.findall("enclaves/enclave/profiles/profile")
    assert [profile.get("node") for profile in profiles] == ["reflectdrive", "reflectdrive_check"]
    for profile in profiles:
        assert sorted(sorted(group.attrib) for group in profile) == [["publish"], ["reply"], ["subscribe"]]
    paths = [enclave.get("path") for enclave in root.iter("enclave")]
    assert paths == [f"{profile.get('ns')}/{profile.get('node')}" for profile in profiles]
    names = [entry.text for entry in root.iter() if entry.tag in ("topic", "service")]
    assert all(re.fullmatch(r"/[\w/]+", name) for name in names), names


def test_another_car_has_another_policy():
    config = Config(cameras=Config().cameras.__class__(topics=("/a", "/b", "/c"), info_topics=("/d", "/e", "/f")))
    subscribed = allowed(sros2_policy.policy(config, "/car"), "subscribe")
    assert {f"/{letter}" for letter in "abcdef"} <= subscribed
    assert "/car/reflectdrive/input/instruction" in subscribed
    assert "/map/vector_map" not in subscribed
    assert "/map/vector_map" in allowed(sros2_policy.policy(LANELETS), "subscribe")


def test_remapped_topics_have_their_new_names_and_no_others(capsys):
    rules = ["~/output/planning_factors:=/planning/planning_factors/reflectdrive", "~/input/objects:=/tracking/objects"]
    words = [word for rule in rules for word in ("--remap", rule)]
    assert sros2_policy.main(words) == 0
    text, plain = capsys.readouterr().out, POLICY.read_text()
    for right, own, new in (
        ("publish", "/planning/reflectdrive/reflectdrive/output/planning_factors", rules[0].partition(":=")[2]),
        ("subscribe", INPUTS["~/input/objects"][1], "/tracking/objects"),
    ):
        assert allowed(text, right) == allowed(plain, right) - {own} | {new}


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ("~/output/plan:=/plan", "but no node has the topic ~/output/plan"),
        ("~/output/trajectory=/plan", "expected FROM:=TO"),
        ("~/output/trajectory:=/plan/*", "expected FROM:=TO"),
    ],
)
def test_a_remapping_that_no_node_has_is_refused(rule, sentence, capsys):
    assert sros2_policy.main(["--remap", rule]) == 2
    assert sentence in capsys.readouterr().err


def test_a_car_with_obstacles_reads_them_where_the_launch_files_remap_them():
    clouds = override_dotted(Config(), {"inputs.obstacles_type": "cloud"})
    subscribed = allowed(sros2_policy.policy(clouds), "subscribe")
    assert INPUTS["~/input/obstacles"][1] in subscribed
    assert not any(name.endswith("/input/obstacles") for name in subscribed)


def check_node(context):
    return CheckNode(context=context)


def planner_node(context):
    return PlannerNode(PlanningCore(Config(), lambda: 0.0), context=context)


@pytest.mark.dds
@pytest.mark.parametrize(
    ("start", "remaps", "overrides"), [(planner_node, INPUTS, {}), (check_node, CHECK_INPUTS, CHECK_SETTINGS)]
)
def test_the_node_does_exactly_what_the_policy_allows(tmp_path, start, remaps, overrides):
    """The running node's endpoints, as the graph shows them, are the policy's: none missing, none too many."""
    config, file = override_dotted(Config(), overrides), tmp_path / "config.yaml"
    file.write_text(as_yaml(config))
    context = Context()
    words = ["--ros-args", "-r", f"__ns:={sros2_policy.NAMESPACE}", "-p", f"config_file:={file}"]
    for name, (_, topic, _) in remaps.items():
        words += ["-r", f"{name}:={topic}"]
    rclpy.init(args=words, context=context)
    node = start(context)
    try:
        who = node.get_name(), node.get_namespace()
        subscribed = {name for name, _ in node.get_subscriber_names_and_types_by_node(*who)}
        published = {name for name, _ in node.get_publisher_names_and_types_by_node(*who)}
        served = {name for name, _ in node.get_service_names_and_types_by_node(*who)}
    finally:
        node.destroy_node()
        rclpy.try_shutdown(context=context)
    text = POLICY.read_text()
    missing = {INPUTS[t.name][1] for t in topics.inputs(config) if not topics.is_installed(t.type)}
    assert subscribed == allowed(text, "subscribe", who[0]) - missing
    assert published == allowed(text, "publish", who[0])
    start_service = topics.START_SERVICE.replace("~", "/".join(reversed(who)))
    absent = set() if topics.is_installed(topics.START_SERVICE_TYPE) else {start_service}
    assert served == allowed(text, "reply", who[0]) - absent


# --- what is installed -----------------------------------------------------------------------------------------------


@pytest.mark.meta
def test_everything_installed_is_pinned_with_its_hash():
    text = (ROOT / "tools" / "requirements.lock").read_text()
    entries = [entry for entry in re.split(r"\n(?=\S)", text) if entry.strip() and not entry.startswith("#")]
    assert len(entries) > 100
    for entry in entries:
        first = entry.splitlines()[0]
        assert re.match(r"[A-Za-z0-9._-]+(\[[a-z,]+\])?==[^ ]+", first), f"not pinned: {first}"
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), f"no hash: {first}"


@pytest.mark.meta
def test_what_is_asked_for_is_what_is_locked():
    requirements = (ROOT / "tools" / "requirements.in").read_text()
    locked = {name.lower().replace("_", "-"): version for name, version in pins(ROOT / "tools" / "requirements.lock")}
    for line in requirements.splitlines():
        requirement = re.match(r"([A-Za-z0-9._-]+)(?:\[.*?\])?==([^ #;]+)", line)
        if requirement:
            assert locked[requirement[1].lower().replace("_", "-")] == requirement[2], line


def pins(file):
    return re.findall(r"^([A-Za-z0-9._-]+)(?:\[.*?\])?==([^ \\;]+)", file.read_text(), re.MULTILINE)
