#include "agents.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "angles.hpp"
#include "contacts.hpp"

namespace reflectdrive {
namespace {

// The integral of exp(-t / decay) from 0 to `time`.
double decayed(double time, double decay) { return -decay * std::expm1(-time / decay); }

}  // namespace

void project_to_road(const Route& route, const double* poses, int agents, double* at, double* beside, double* facing) {
  for (int a = 0; a < agents; ++a) {
    const double* pose = poses + 3 * a;
    int nearest = 0;
    double nearest2 = INFINITY;
    for (int r = 0; r < route.count; ++r) {
      const double dx = pose[0] - route.places[2 * r], dy = pose[1] - route.places[2 * r + 1];
      if (dx * dx + dy * dy < nearest2) nearest2 = dx * dx + dy * dy, nearest = r;
    }
    const double dx = pose[0] - route.places[2 * nearest], dy = pose[1] - route.places[2 * nearest + 1];
    const double cos = std::cos(route.headings[nearest]), sin = std::sin(route.headings[nearest]);
    at[a] = route.at[nearest] + cos * dx + sin * dy;
    beside[a] = cos * dy - sin * dx;
    facing[a] = std::cos(pose[2] - heading_at(route, at[a]));
  }
}

void find_leads(const RoadUsers& agents, const LeadRule& rule, long long* rows, double* gaps) {
  for (int a = 0; a < agents.count; ++a) {
    rows[a] = 0, gaps[a] = INFINITY;
    if (!agents.follows[a] || !(agents.speeds[a] > rule.moving_mps)) continue;
    const double *pose = agents.poses + 3 * a, *size = agents.sizes + 2 * a;
    const double cos = std::cos(pose[2]), sin = std::sin(pose[2]),
                 way = (agents.facing[a] > 0.0) - (agents.facing[a] < 0.0);
    for (int b = 0; b < agents.count; ++b) {
      const double *other = agents.poses + 3 * b, *its_size = agents.sizes + 2 * b;
      const double dx = other[0] - pose[0], dy = other[1] - pose[1];
      const bool both = agents.on_road[a] && agents.on_road[b];
      const double ahead = both ? way * (agents.at[b] - agents.at[a]) : cos * dx + sin * dy;
      const double left = both ? way * (agents.beside[b] - agents.beside[a]) : cos * dy - sin * dx;
      if (!(ahead > 0.0) || !(std::abs(left) < 0.5 * (its_size[1] + size[1]) - rule.passes_m)) continue;
      if (!(std::cos(other[2] - pose[2]) > rule.same_way) && !(agents.speeds[b] < rule.moving_mps)) continue;
      const double gap = ahead - 0.5 * (its_size[0] + size[0]);
      if (gap < gaps[a]) gaps[a] = gap, rows[a] = b;
    }
    gaps[a] = gaps[a] < rule.reach_m ? std::max(gaps[a], 0.0) : INFINITY;
  }
}

void along_arcs(const double* poses, const double* velocities, const double* yaw_rates, int agents,
                const double* driven, int count, double decay_s, double least_mps, double* found) {
  for (int a = 0; a < agents; ++a) {
    const double *pose = poses + 3 * a, *way = driven + static_cast<long long>(a) * count;
    double* at = found + 3 * static_cast<long long>(a) * count;
    const double vx = velocities[2 * a], vy = velocities[2 * a + 1], mps = std::hypot(vx, vy);
    const double pace = std::max(mps, least_mps), scale = std::max(mps, 1e-9), east = vx / scale, north = vy / scale;
    double x = 0.0, y = 0.0, turned_before = 0.0;
    for (int t = 0; t < count; ++t) {
      const double turned = yaw_rates[a] == 0.0 ? 0.0 : yaw_rates[a] * decayed(way[t] / pace, decay_s);
      if (t > 0) {
        const double middle = 0.5 * (turned + turned_before), step = way[t] - way[t - 1];
        const double cos = std::cos(middle), sin = std::sin(middle);
        x += step * (cos * east - sin * north), y += step * (sin * east + cos * north);
      }
      turned_before = turned;
      at[3 * t] = pose[0] + x, at[3 * t + 1] = pose[1] + y, at[3 * t + 2] = wrap(pose[2] + turned);
    }
  }
}

void along_road(const Route& route, const double* at, const double* beside, const double* poses, const double* speeds,
                int agents, const double* driven, int count, double decay_s, double least_mps, double* found) {
  const int last = route.count - 1;
  std::vector<double> cos(route.count), sin(route.count), lane_m(route.count), moved(2 * count), places(2 * count),
      lasting(count);
  for (int r = 0; r <= last; ++r) cos[r] = std::cos(route.headings[r]), sin[r] = std::sin(route.headings[r]);
  for (int a = 0; a < agents; ++a) {
    const double *pose = poses + 3 * a, *way = driven + static_cast<long long>(a) * count;
    double* poses_then = found + 3 * static_cast<long long>(a) * count;
    const double turned = wrap(pose[2] - heading_at(route, at[a])), with_road = std::cos(turned) > 0.0 ? 1.0 : -1.0;
    // Distances along the agent's lane, at its offset from the road, to distances along the road.
    double x = 0.0, y = 0.0;
    for (int r = 0; r <= last; ++r) {
      const double lane_x = route.places[2 * r] - beside[a] * sin[r],
                   lane_y = route.places[2 * r + 1] + beside[a] * cos[r];
      lane_m[r] = r ? lane_m[r - 1] + std::hypot(lane_x - x, lane_y - y) : 0.0;
      x = lane_x, y = lane_y;
    }
    const double begins = interpolate(route.at, lane_m.data(), route.count, at[a]),
                 across = speeds[a] * std::sin(turned);
    const double pace = std::max(speeds[a], least_mps), off = wrap(turned - (with_road > 0.0 ? 0.0 : kPi));
    for (int t = 0; t < count; ++t) {
      const double along = begins + with_road * way[t], beyond = along - std::clamp(along, 0.0, lane_m[last]);
      moved[2 * t] = interpolate(lane_m.data(), route.at, route.count, along) + beyond;
      lasting[t] = decayed(way[t] / pace, decay_s);
      moved[2 * t + 1] = beside[a] + across * lasting[t];
    }
    to_cartesian(route, moved.data(), count, places.data());
    const double heading_now = heading_at(route, moved[0]);
    for (int t = 0; t < count; ++t) {
      poses_then[3 * t] = pose[0] + places[2 * t] - places[0];
      poses_then[3 * t + 1] = pose[1] + places[2 * t + 1] - places[1];
      const double realigned = off * lasting[t] / decay_s;
      poses_then[3 * t + 2] = wrap(pose[2] + heading_at(route, moved[2 * t]) - heading_now - realigned);
    }
  }
}

void continue_tracks(const double* poses, int agents, int count, double dt_s, double* found, double* speeds) {
  std::vector<double> headings(count);
  for (int a = 0; a < agents; ++a) {
    const double* knots = poses + 3 * static_cast<long long>(a) * count;
    headings[0] = knots[2];
    for (int k = 1; k < count; ++k) headings[k] = unwrap(headings[k - 1], knots[3 * k + 2]);
    for (int t = 0; t < kSamples; ++t) {
      const double time = kDtS * t / dt_s;
      const int before = std::clamp(static_cast<int>(time), 0, std::max(count - 2, 0)),
                after = std::min(before + 1, count - 1);
      const double share = time - before, dx = knots[3 * after] - knots[3 * before],
                   dy = knots[3 * after + 1] - knots[3 * before + 1];
      double* at = found + 3 * (static_cast<long long>(a) * kSamples + t);
      at[0] = knots[3 * before] + dx * share, at[1] = knots[3 * before + 1] + dy * share;
      at[2] = wrap(headings[before] + (headings[after] - headings[before]) * std::min(share, 1.0));
      speeds[static_cast<long long>(a) * kSamples + t] = std::hypot(dx, dy) / dt_s;
    }
  }
}

}  // namespace reflectdrive
