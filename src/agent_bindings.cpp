// Bindings of the prediction of agents: their places on the route, their leads, and how they go on.

#include "agents.hpp"
#include "kernels.hpp"
#include "motion.hpp"

namespace reflectdrive {

KERNEL(follow_leads) {
  return call("follow_leads", values, count, [](Arguments& take) {
    const Doubles speeds(take.next(), "speeds", 1), accelerations(take.next(), "accelerations", 2);
    const Array<const long long> leads(take.next(), "leads", 1);
    const Doubles gaps(take.next(), "gaps", 1), times(take.next(), "times", 1);
    const Following rule{take.number(), take.number(), take.number(), take.number(),
                         take.number(), take.number(), take.number()};
    const Array<double> driven(take.next(), "driven", 2);
    const Py_ssize_t agents = speeds.size(0), steps = accelerations.size(1);
    accelerations.of(0, agents, "accelerations"), leads.of(0, agents, "leads"), gaps.of(0, agents, "gaps");
    driven.of(0, agents, "driven").of(1, times.size(0), "driven");
    if (steps < 1) throw std::invalid_argument("accelerations has no step");
    for (Py_ssize_t a = 0; a < agents; ++a)
      if (leads.data()[a] < 0 || leads.data()[a] >= agents)
        throw std::invalid_argument("leads holds no row of an agent");
    for (Py_ssize_t t = 0; t < times.size(0); ++t)
      if (!(times.data()[t] >= 0.0)) throw std::invalid_argument("times is negative");
    unlocked([&] {
      follow_leads(speeds.data(), accelerations.data(), leads.data(), gaps.data(), static_cast<int>(agents),
                   static_cast<int>(steps), times.data(), static_cast<int>(times.size(0)), rule, driven.data());
    });
    return 0;
  });
}

KERNEL(project_to_road) {
  return call("project_to_road", values, count, [](Arguments& take) {
    const RouteArguments road(take);
    const Doubles poses(take.next(), "poses", 2);
    const Array<double> at(take.next(), "at_m", 1), beside(take.next(), "beside_m", 1),
        facing(take.next(), "facing", 1);
    const Py_ssize_t agents = poses.size(0);
    poses.of(1, 3, "poses"), at.of(0, agents, "at_m"), beside.of(0, agents, "beside_m"), facing.of(0, agents, "facing");
    if (road.route().count == 0) throw std::invalid_argument("at is empty");
    unlocked([&] {
      project_to_road(road.route(), poses.data(), static_cast<int>(agents), at.data(), beside.data(), facing.data());
    });
    return 0;
  });
}

KERNEL(find_leads) {
  return call("find_leads", values, count, [](Arguments& take) {
    const Doubles poses(take.next(), "poses", 2), speeds(take.next(), "speeds", 1), sizes(take.next(), "sizes", 2);
    const Flags follows(take.next(), "follows", 1);
    const Doubles at(take.next(), "at_m", 1), beside(take.next(), "beside_m", 1), facing(take.next(), "facing", 1);
    const Flags on_road(take.next(), "on_road", 1);
    const LeadRule rule{take.number(), take.number(), take.number(), take.number()};
    const Array<long long> rows(take.next(), "rows", 1);
    const Array<double> gaps(take.next(), "gaps", 1);
    const Py_ssize_t agents = speeds.size(0);
    poses.of(0, agents, "poses").of(1, 3, "poses"), sizes.of(0, agents, "sizes").of(1, 2, "sizes");
    follows.of(0, agents, "follows"), at.of(0, agents, "at_m"), beside.of(0, agents, "beside_m");
    facing.of(0, agents, "facing"), on_road.of(0, agents, "on_road"), rows.of(0, agents, "rows"),
        gaps.of(0, agents, "gaps");
    const RoadUsers users{static_cast<int>(agents),
                          poses.data(),
                          speeds.data(),
                          sizes.data(),
                          follows.data(),
                          at.data(),
                          beside.data(),
                          facing.data(),
                          on_road.data()};
    unlocked([&] { find_leads(users, rule, rows.data(), gaps.data()); });
    return 0;
  });
}

KERNEL(along_arcs) {
  return call("along_arcs", values, count, [](Arguments& take) {
    const Doubles poses(take.next(), "poses", 2), velocities(take.next(), "velocities", 2),
        rates(take.next(), "yaw_rates", 1);
    const Doubles driven(take.next(), "driven", 2);
    const double decay_s = take.number(), least_mps = take.number();
    const Array<double> found(take.next(), "found", 3);
    const Py_ssize_t agents = rates.size(0), number = driven.size(1);
    poses.of(0, agents, "poses").of(1, 3, "poses"), velocities.of(0, agents, "velocities").of(1, 2, "velocities");
    driven.of(0, agents, "driven"), found.of(0, agents, "found").of(1, number, "found").of(2, 3, "found");
    unlocked([&] {
      along_arcs(poses.data(), velocities.data(), rates.data(), static_cast<int>(agents), driven.data(),
                 static_cast<int>(number), decay_s, least_mps, found.data());
    });
    return 0;
  });
}

KERNEL(along_road) {
  return call("along_road", values, count, [](Arguments& take) {
    const RouteArguments road(take);
    const Doubles at(take.next(), "at_m", 1), beside(take.next(), "beside_m", 1), poses(take.next(), "poses", 2);
    const Doubles speeds(take.next(), "speeds", 1), driven(take.next(), "driven", 2);
    const double decay_s = take.number(), least_mps = take.number();
    const Array<double> found(take.next(), "found", 3);
    const Py_ssize_t agents = speeds.size(0), number = driven.size(1);
    at.of(0, agents, "at_m"), beside.of(0, agents, "beside_m"), poses.of(0, agents, "poses").of(1, 3, "poses");
    driven.of(0, agents, "driven"), found.of(0, agents, "found").of(1, number, "found").of(2, 3, "found");
    if (road.route().count == 0 || number == 0) throw std::invalid_argument("at or driven is empty");
    unlocked([&] {
      along_road(road.route(), at.data(), beside.data(), poses.data(), speeds.data(), static_cast<int>(agents),
                 driven.data(), static_cast<int>(number), decay_s, least_mps, found.data());
    });
    return 0;
  });
}

KERNEL(continue_tracks) {
  return call("continue_tracks", values, count, [](Arguments& take) {
    const Doubles poses(take.next(), "poses", 3);
    const double dt_s = take.number();
    const Array<double> found(take.next(), "found", 3), speeds(take.next(), "speeds", 2);
    const Py_ssize_t agents = poses.size(0);
    poses.of(2, 3, "poses"), found.of(0, agents, "found").of(1, kSamples, "found").of(2, 3, "found");
    speeds.of(0, agents, "speeds").of(1, kSamples, "speeds");
    if (poses.size(1) < 1 || !(dt_s > 0.0)) throw std::invalid_argument("poses has no instant, or dt is not positive");
    unlocked([&] {
      continue_tracks(poses.data(), static_cast<int>(agents), static_cast<int>(poses.size(1)), dt_s, found.data(),
                      speeds.data());
    });
    return 0;
  });
}

}  // namespace reflectdrive
