// Bindings of the prediction of agents: where they are on the route, their leads, and how they go on.

#include "agents.hpp"
#include "bindings.hpp"
#include "motion.hpp"

namespace reflectdrive {

void bind_agents(nanobind::module_& module) {
  bind(module, "follow_leads",
       [](Doubles speeds, Doubles accelerations, Integers leads, Doubles gaps, Doubles times,
          const std::array<double, 7>& rule, DoublesOut driven) {
         const int agents = speeds.check("speeds", {kAny}).size(0);
         const int steps = accelerations.check("accelerations", {agents, kAny}).size(1);
         const int samples = times.check("times", {kAny}).size(0);
         leads.check("leads", {agents}), gaps.check("gaps", {agents}), driven.check("driven", {agents, samples});
         if (steps < 1) throw std::invalid_argument("accelerations has no step");
         for (int a = 0; a < agents; ++a)
           if (leads.data()[a] < 0 || leads.data()[a] >= agents)
             throw std::invalid_argument("leads holds no row of an agent");
         for (int t = 0; t < samples; ++t)
           if (!(times.data()[t] >= 0.0)) throw std::invalid_argument("times is negative");
         follow_leads(speeds.data(), accelerations.data(), leads.data(), gaps.data(), agents, steps, times.data(),
                      samples, as<Following>(rule), driven.data());
       });

  bind(module, "project_to_road",
       [](const RouteArrays& road, Doubles poses, DoublesOut at_m, DoublesOut beside_m, DoublesOut facing) {
         const int agents = poses.check("poses", {kAny, 3}).size(0);
         at_m.check("at_m", {agents}), beside_m.check("beside_m", {agents}), facing.check("facing", {agents});
         project_to_road(road_of(road), poses.data(), agents, at_m.data(), beside_m.data(), facing.data());
       });

  bind(module, "find_leads",
       [](Doubles poses, Doubles speeds, Doubles sizes, Flags follows, Doubles at_m, Doubles beside_m, Doubles facing,
          Flags on_road, const std::array<double, 4>& rule, IntegersOut rows, DoublesOut gaps) {
         const int agents = speeds.check("speeds", {kAny}).size(0);
         poses.check("poses", {agents, 3}), sizes.check("sizes", {agents, 2}), follows.check("follows", {agents});
         at_m.check("at_m", {agents}), beside_m.check("beside_m", {agents}), facing.check("facing", {agents});
         on_road.check("on_road", {agents}), rows.check("rows", {agents}), gaps.check("gaps", {agents});
         const RoadUsers users{agents,      poses.data(),    speeds.data(), sizes.data(),  follows.data(),
                               at_m.data(), beside_m.data(), facing.data(), on_road.data()};
         find_leads(users, as<LeadRule>(rule), rows.data(), gaps.data());
       });

  bind(module, "along_arcs",
       [](Doubles poses, Doubles velocities, Doubles yaw_rates, Doubles driven, double decay_s, double least_mps,
          DoublesOut poses_then) {
         const int agents = yaw_rates.check("yaw_rates", {kAny}).size(0);
         const int samples = driven.check("driven", {agents, kAny}).size(1);
         poses.check("poses", {agents, 3}), velocities.check("velocities", {agents, 2});
         poses_then.check("poses_then", {agents, samples, 3});
         along_arcs(poses.data(), velocities.data(), yaw_rates.data(), agents, driven.data(), samples, decay_s,
                    least_mps, poses_then.data());
       });

  bind(module, "along_road",
       [](const RouteArrays& road, Doubles at_m, Doubles beside_m, Doubles poses, Doubles speeds, Doubles driven,
          double decay_s, double least_mps, DoublesOut poses_then) {
         const int agents = speeds.check("speeds", {kAny}).size(0);
         const int samples = driven.check("driven", {agents, kAny}).size(1);
         at_m.check("at_m", {agents}), beside_m.check("beside_m", {agents}), poses.check("poses", {agents, 3});
         poses_then.check("poses_then", {agents, samples, 3});
         if (samples < 1) throw std::invalid_argument("driven is empty");
         along_road(road_of(road), at_m.data(), beside_m.data(), poses.data(), speeds.data(), agents, driven.data(),
                    samples, decay_s, least_mps, poses_then.data());
       });

  bind(module, "continue_tracks", [](Doubles poses, double dt_s, DoublesOut tracks, DoublesOut speeds) {
    poses.check("poses", {kAny, kAny, 3});
    const int agents = poses.size(0), count = poses.size(1);
    tracks.check("tracks", {agents, kSamples, 3}), speeds.check("speeds", {agents, kSamples});
    if (count < 1 || !(dt_s > 0.0)) throw std::invalid_argument("poses has no instant, or dt is not positive");
    continue_tracks(poses.data(), agents, count, dt_s, tracks.data(), speeds.data());
  });
}

}  // namespace reflectdrive
