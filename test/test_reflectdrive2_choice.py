"""How the generator reflectdrive2 chooses among the plans that it has drafted."""

from dataclasses import replace

import numpy as np
from scenes import NO_LIGHTS, cars, config, observation
from scripted_network import SLOW, STRAIGHT, ScriptedNetwork, arc_way, camera_observation, drive

from reflectdrive_ros.core.recipe_config import ReflectDrive2Config as Settings
from reflectdrive_ros.planning import goals
from reflectdrive_ros.planning.select import LOG_PROB_WEIGHT
from reflectdrive_ros.scoring.safety import SafetyContext


def test_alone_with_its_images_it_drives_to_one_goal():
    network = ScriptedNetwork(STRAIGHT, SLOW)  # about as likely
    ((cautious, _),) = drive(network, [camera_observation(speed=6.0)])
    assert cautious.tokens.tolist() == network.ids[1].tolist()
    ((plan, _),) = drive(network, [camera_observation(speed=8.0)], Settings(goal_logprob_margin=0.0))
    assert plan.candidates == ()
    assert plan.scores == ()
    assert plan.tokens.tolist() == network.ids[0].tolist()
    assert ("draft", 1, 14) in network.calls


def test_with_agents_the_score_chooses_a_plan_that_stops_in_time():
    network = ScriptedNetwork(STRAIGHT, SLOW)
    ((free, _),) = drive(network, [camera_observation(speed=8.0, agents=cars())])
    assert free.tokens.tolist() == network.ids[0].tolist()
    ((behind, _),) = drive(network, [camera_observation(speed=8.0, agents=cars((24.0, 0.0, 0.0, 0.0)))])
    assert behind.tokens.tolist() == network.ids[1].tolist()
    assert len(behind.candidates) == 1
    assert behind.scores[0] > 0.5
    assert behind.scores[1] == 0.0
    likeliest = Settings(goal_logprob_margin=0.0)
    ((unchosen, _),) = drive(
        network,
        [camera_observation(speed=8.0, agents=cars((24.0, 0.0, 0.0, 0.0)))],
        likeliest,
        pipeline__select=False,
        pipeline__repair=False,
    )
    assert unchosen.tokens.tolist() == network.ids[0].tolist()


def test_with_agents_and_lights_the_score_decides_the_distance_and_without_lights_the_nearest_goal():
    network = ScriptedNetwork(STRAIGHT, SLOW)  # about as likely
    ((free, _),) = drive(network, [camera_observation(speed=6.0, agents=cars(), traffic_lights=NO_LIGHTS)])
    ((nearest, _),) = drive(network, [camera_observation(speed=6.0, agents=cars())])
    assert free.tokens.tolist() == network.ids[0].tolist()
    assert nearest.tokens.tolist() == network.ids[1].tolist()
    ((behind, _),) = drive(
        network, [camera_observation(speed=8.0, agents=cars((24.0, 0.0, 0.0, 0.0)), traffic_lights=NO_LIGHTS)]
    )
    assert behind.tokens.tolist() == network.ids[1].tolist()


def test_a_goal_is_chosen_by_progress_and_by_how_likely_it_is_among_the_safest():
    """Goals 32, 28 and 24 m ahead at 8 m/s: 4 m are an eighth of the progress, whose weight is 5 of 12."""
    times_s = 0.5 * np.arange(1, 9)
    paths = np.stack([8.0 * times_s - 0.5 * braking * times_s**2 for braking in (0.0, 0.5, 1.0)])
    paths = np.stack([paths, np.zeros_like(paths)], axis=-1)

    def chosen(log_probs, *others):
        scene = observation(speed=8.0, agents=cars(*others), traffic_lights=NO_LIGHTS)
        return goals.rank(paths, np.array(log_probs), SafetyContext(scene, config()))[0]

    margin = 0.125 * 5.0 / 12.0 / LOG_PROB_WEIGHT  # log-probability that outweighs 4 m
    assert chosen((0.0, 0.0, 0.0)) == 0
    assert chosen((-0.7 * margin, 0.0, 0.0)) == 0
    assert chosen((-1.3 * margin, 0.0, 0.0)) == 1
    assert chosen((-3.0 * margin, -1.3 * margin, 0.0)) == 2
    assert chosen((0.0, -9.0, -9.0), (35.0, 0.0, 0.0, 0.0)) == 1  # the first comes too close to the car ahead


def test_the_score_after_a_repair_is_that_of_the_plan_that_is_driven():
    network = ScriptedNetwork(STRAIGHT, arc_way(8.0, 0.002))  # both run into the car ahead
    scene = camera_observation(speed=8.0, agents=cars((24.0, 0.0, 0.0, 0.0)))
    plain, repaired = (drive(network, [scene], pipeline__repair=repair)[0][0] for repair in (False, True))
    assert plain.scores == (0.0, 0.0)
    assert repaired.check.repairs > 0
    assert repaired.scores[0] > 0.5
    assert repaired.scores[1] == 0.0


def test_goals_that_only_fill_their_slots_are_not_drafted():
    class Padded(ScriptedNetwork):
        def prefill_goal(self, inputs):
            return replace(super().prefill_goal(inputs), valid=np.array([True, True, False]))

    network = Padded(STRAIGHT, SLOW, STRAIGHT)
    ((plan, _),) = drive(network, [camera_observation(speed=8.0, agents=cars())])
    assert len(plan.candidates) == 1
