// Bindings of the driving score: simulation, collisions, areas, drivable space and comfort of N candidates.

#include "areas.hpp"
#include "comfort.hpp"
#include "kernels.hpp"
#include "simulate.hpp"

namespace reflectdrive {

KERNEL(interpolate_plans) {
  return call("interpolate_plans", values, count, [](Arguments& take) {
    const Doubles plans(take.next(), "plans", 3), knots(take.next(), "knot_times", 1), times(take.next(), "times", 1);
    const Array<double> reference(take.next(), "reference", 3);
    const Py_ssize_t cars = plans.size(0), poses = plans.size(1);
    plans.of(2, 3, "plans"), knots.of(0, poses + 1, "knot_times"), times.of(0, kSteps + 1, "times");
    reference.of(0, cars, "reference").of(1, kSteps + 1, "reference").of(2, 3, "reference");
    unlocked([&] {
      for (Py_ssize_t n = 0; n < cars; ++n)
        interpolate_plan(plans.data() + n * poses * 3, static_cast<int>(poses), knots.data(), times.data(),
                         reference.data() + n * (kSteps + 1) * 3);
    });
    return 0;
  });
}

KERNEL(follow) {
  return call("follow", values, count, [](Arguments& take) {
    const Doubles reference(take.next(), "reference", 3), motion(take.next(), "motion", 2),
        fit(take.next(), "speed_fit", 2);
    const Bicycle car{take.number(), take.number()};
    const Array<double> states(take.next(), "states", 3);
    const Py_ssize_t cars = reference.size(0);
    reference.of(1, kSteps + 1, "reference").of(2, 3, "reference");
    motion.of(1, kStateSize - 3, "motion"), fit.of(0, kSteps, "speed_fit").of(1, kSteps, "speed_fit");
    states.of(0, cars, "states").of(1, kSteps + 1, "states").of(2, kStateSize, "states");
    if (motion.size(0) != 1) motion.of(0, cars, "motion");
    unlocked([&] {
      for (Py_ssize_t n = 0; n < cars; ++n)
        follow(reference.data() + n * (kSteps + 1) * 3,
               motion.data() + (motion.size(0) == 1 ? 0 : n) * (kStateSize - 3), fit.data(), car,
               states.data() + n * (kSteps + 1) * kStateSize);
    });
    return 0;
  });
}

KERNEL(fit_curvatures) {
  return call("fit_curvatures", values, count, [](Arguments& take) {
    const Doubles turns(take.next(), "turns", 2), distances(take.next(), "distances", 2);
    const Array<double> curvatures(take.next(), "curvatures", 2);
    turns.of(1, kSteps, "turns"), distances.of(0, turns.size(0), "distances").of(1, kSteps, "distances");
    curvatures.of(0, turns.size(0), "curvatures").of(1, kSteps, "curvatures");
    for (Py_ssize_t n = 0; n < turns.size(0); ++n)
      fit_curvatures(turns.data() + n * kSteps, distances.data() + n * kSteps, curvatures.data() + n * kSteps);
    return 0;
  });
}

namespace {

// Three arguments: states, centers, beside_counts.
class CandidateArguments {
 public:
  explicit CandidateArguments(Arguments& take)
      : states_(take.next(), "states", 3),
        centers_(take.next(), "centers", 3),
        beside_(take.next(), "beside_counts", 2) {
    states_.of(1, kInstants, "states").of(2, kStateSize, "states");
    centers_.of(0, states_.size(0), "centers").of(1, kInstants, "centers").of(2, 3, "centers");
    beside_.of(0, states_.size(0), "beside_counts").of(1, kInstants, "beside_counts");
  }
  Candidates candidates() const {
    return {static_cast<int>(states_.size(0)), states_.data(), centers_.data(), beside_.data()};
  }

 private:
  Doubles states_, centers_;
  Flags beside_;
};

}  // namespace

KERNEL(no_collision) {
  return call("no_collision", values, count, [](Arguments& take) {
    const CandidateArguments ego(take);
    const EgoBox box{take.number(), take.number()};
    const AgentArguments agents(take);
    const bool whole = take.integer(), spare_first = take.integer();
    const Array<double> score(take.next(), "score", 2);
    const Candidates candidates = ego.candidates();
    score.of(0, candidates.count, "score").of(1, kInstants, "score");
    unlocked([&] { no_collision(candidates, box, agents.agents(), whole, spare_first, score.data()); });
    return 0;
  });
}

KERNEL(time_to_collision) {
  return call("time_to_collision", values, count, [](Arguments& take) {
    const CandidateArguments ego(take);
    const EgoBox box{take.number(), take.number()};
    const AgentArguments agents(take);
    const long last = take.integer();
    const bool whole = take.integer(), at_contact = take.integer();
    const Array<double> score(take.next(), "score", 1);
    const Candidates candidates = ego.candidates();
    score.of(0, candidates.count, "score");
    if (last < 0 || last >= kInstants) throw std::invalid_argument("last is not 0 to 40");
    unlocked([&] {
      time_to_collision(candidates, box, agents.agents(), static_cast<int>(last), whole, at_contact, score.data());
    });
    return 0;
  });
}

KERNEL(agent_gaps) {
  return call("agent_gaps", values, count, [](Arguments& take) {
    const Doubles centers(take.next(), "centers", 3);
    const Array<const long long> samples(take.next(), "samples", 1);
    const EgoBox box{take.number(), take.number()};
    const AgentArguments agents(take);
    const double most_m = take.number();
    const Array<double> gaps(take.next(), "gaps", 2);
    const Py_ssize_t candidates = centers.size(0), instants = centers.size(1);
    centers.of(2, 3, "centers"), samples.of(0, instants, "samples");
    gaps.of(0, candidates, "gaps").of(1, instants, "gaps");
    for (Py_ssize_t k = 0; k < instants; ++k)
      if (samples.data()[k] < 0 || samples.data()[k] >= kSamples) throw std::invalid_argument("samples is not 0 to 50");
    unlocked([&] {
      agent_gaps(centers.data(), static_cast<int>(candidates), static_cast<int>(instants), samples.data(), box,
                 agents.agents(), most_m, gaps.data());
    });
    return 0;
  });
}

namespace {

// Four arguments: centers (B, 3), length_m, width_m and ahead_m of boxes.
class BoxArguments {
 public:
  explicit BoxArguments(Arguments& take)
      : centers_(take.next(), "centers", 2),
        length_m_(take.number()),
        width_m_(take.number()),
        ahead_m_(take.number()) {
    centers_.of(1, 3, "centers");
  }
  AreaBoxes boxes() const { return {centers_.data(), centers_.size(0), length_m_, width_m_, ahead_m_}; }

 private:
  Doubles centers_;
  double length_m_, width_m_, ahead_m_;
};

}  // namespace

KERNEL(box_points) {
  return call("box_points", values, count, [](Arguments& take) {
    const BoxArguments boxes(take);
    const Array<double> points(take.next(), "points", 3);
    points.of(0, boxes.boxes().count, "points").of(1, 6, "points").of(2, 2, "points");
    unlocked([&] { box_points(boxes.boxes(), points.data()); });
    return 0;
  });
}

namespace {

// Seven arguments, those of `AreaCells`: place (5), columns, references, first, edges, edge_bits, reach_m.
class CellArguments {
 public:
  explicit CellArguments(Arguments& take)
      : place_(take.next(), "place", 1),
        columns_(take.integer()),
        references_(take.next(), "references", 2),
        first_(take.next(), "first", 1),
        edges_(take.next(), "edges", 2),
        edge_bits_(take.next(), "edge_bits", 2),
        reach_m_(take.number()) {
    const Py_ssize_t words = references_.size(0), cells = references_.size(1);
    place_.of(0, 5, "place"), first_.of(0, cells + 1, "first"), edges_.of(0, 6, "edges");
    edge_bits_.of(0, words, "edge_bits").of(1, edges_.size(1), "edge_bits");
    if (columns_ <= 0 || cells % columns_ != 0) throw std::invalid_argument("columns does not divide the cells");
  }
  AreaCells cells() const {
    const double* p = place_.data();
    const Py_ssize_t cells = references_.size(1);
    return {p[0],
            p[1],
            p[2],
            p[3],
            p[4],
            cells / columns_,
            columns_,
            cells,
            edges_.size(1),
            static_cast<int>(words()),
            references_.data(),
            first_.data(),
            edges_.data(),
            edge_bits_.data(),
            reach_m_};
  }
  Py_ssize_t words() const { return references_.size(0); }

 private:
  Doubles place_;
  long columns_;
  Array<const uint64_t> references_;
  Array<const long long> first_;
  Doubles edges_;
  Array<const uint64_t> edge_bits_;
  double reach_m_;
};

// Six arguments: starts and stops (E, 2) of edges, their bits (E, words); place (5), rows and columns of a grid.
class EdgeArguments {
 public:
  explicit EdgeArguments(Arguments& take)
      : starts_(take.next(), "starts", 2),
        stops_(take.next(), "stops", 2),
        bits_(take.next(), "bits", 2),
        place_(take.next(), "place", 1),
        rows_(take.integer()),
        columns_(take.integer()) {
    const Py_ssize_t count = starts_.size(0);
    starts_.of(1, 2, "starts"), stops_.of(0, count, "stops").of(1, 2, "stops"), bits_.of(0, count, "bits");
    place_.of(0, 5, "place");
    if (rows_ <= 0 || columns_ <= 0) throw std::invalid_argument("the grid has no cells");
  }
  AreaEdges edges() const {
    return {starts_.data(), stops_.data(), bits_.data(), starts_.size(0), static_cast<int>(words())};
  }
  AreaGrid grid() const {
    const double* p = place_.data();
    return {p[0], p[1], p[2], p[3], p[4], rows_, columns_};
  }
  Py_ssize_t words() const { return bits_.size(1); }
  Py_ssize_t cells() const { return rows_ * columns_; }

 private:
  Doubles starts_, stops_;
  Array<const uint64_t> bits_;
  Doubles place_;
  long rows_, columns_;
};

// Four arguments: bits of lanes, of the route's lanes, of drivable polygons and of intersections.
class KindArguments {
 public:
  KindArguments(Arguments& take, Py_ssize_t words)
      : lanes_(take.next(), "lanes", 1),
        route_(take.next(), "route", 1),
        drivable_(take.next(), "drivable", 1),
        intersections_(take.next(), "intersections", 1) {
    lanes_.of(0, words, "lanes"), route_.of(0, words, "route");
    drivable_.of(0, words, "drivable"), intersections_.of(0, words, "intersections");
  }
  AreaKinds kinds() const { return {lanes_.data(), route_.data(), drivable_.data(), intersections_.data()}; }

 private:
  Array<const uint64_t> lanes_, route_, drivable_, intersections_;
};

}  // namespace

KERNEL(count_edge_cells) {
  return call("count_edge_cells", values, count, [](Arguments& take) {
    const EdgeArguments of(take);
    const Array<long long> first(take.next(), "first", 1);
    first.of(0, of.cells() + 1, "first");
    long long pairs = 0;
    unlocked([&] { pairs = count_edge_cells(of.edges(), of.grid(), first.data()); });
    return pairs;
  });
}

KERNEL(fill_edge_cells) {
  return call("fill_edge_cells", values, count, [](Arguments& take) {
    const EdgeArguments of(take);
    const Array<const long long> first(take.next(), "first", 1);
    const Array<double> edges(take.next(), "edges", 2);
    const Array<uint64_t> bits(take.next(), "edge_bits", 2);
    first.of(0, of.cells() + 1, "first");
    const Py_ssize_t pairs = first.data()[of.cells()];
    edges.of(0, 6, "edges").of(1, pairs, "edges"), bits.of(0, of.words(), "edge_bits").of(1, pairs, "edge_bits");
    unlocked([&] { fill_edge_cells(of.edges(), of.grid(), first.data(), edges.data(), bits.data()); });
    return 0;
  });
}

KERNEL(draw_references) {
  return call("draw_references", values, count, [](Arguments& take) {
    const EdgeArguments of(take);
    const Array<uint64_t> references(take.next(), "references", 2);
    references.of(0, of.words(), "references").of(1, of.cells(), "references");
    unlocked([&] { draw_references(of.edges(), of.grid(), references.data()); });
    return 0;
  });
}

KERNEL(polygons_around) {
  return call("polygons_around", values, count, [](Arguments& take) {
    const Doubles points(take.next(), "points", 2);
    const CellArguments index(take);
    const Array<uint64_t> sets(take.next(), "sets", 2);
    const Array<bool> uncertain(take.next(), "uncertain", 1);
    points.of(1, 2, "points"), sets.of(0, points.size(0), "sets").of(1, index.words(), "sets");
    uncertain.of(0, points.size(0), "uncertain");
    long long uncertain_count = 0;
    unlocked([&] {
      uncertain_count = polygons_around(index.cells(), points.data(), points.size(0), sets.data(), uncertain.data());
    });
    return uncertain_count;
  });
}

KERNEL(area_flags) {
  return call("area_flags", values, count, [](Arguments& take) {
    const Array<const uint64_t> sets(take.next(), "sets", 3);
    const Py_ssize_t words = sets.size(2);
    const KindArguments kinds(take, words);
    const bool road_known = take.integer();
    const Array<bool> flags(take.next(), "flags", 2);
    sets.of(1, 6, "sets"), flags.of(0, 5, "flags").of(1, sets.size(0), "flags");
    unlocked([&] {
      area_flags(sets.data(), sets.size(0), static_cast<int>(words), kinds.kinds(), road_known, flags.data());
    });
    return 0;
  });
}

KERNEL(area_flags_of_boxes) {
  return call("area_flags_of_boxes", values, count, [](Arguments& take) {
    const BoxArguments boxes(take);
    const CellArguments index(take);
    const KindArguments kinds(take, index.words());
    const bool road_known = take.integer();
    const Array<bool> flags(take.next(), "flags", 2), uncertain(take.next(), "uncertain", 1);
    const Py_ssize_t number = boxes.boxes().count;
    flags.of(0, 5, "flags").of(1, number, "flags"), uncertain.of(0, number, "uncertain");
    long long uncertain_count = 0;
    unlocked([&] {
      uncertain_count =
          area_flags_of_boxes(index.cells(), boxes.boxes(), kinds.kinds(), road_known, flags.data(), uncertain.data());
    });
    return uncertain_count;
  });
}

KERNEL(red_light_contacts) {
  return call("red_light_contacts", values, count, [](Arguments& take) {
    const Doubles centers(take.next(), "centers", 3);
    const double length_m = take.number(), width_m = take.number();
    const Doubles ring(take.next(), "ring", 2);
    const Flags red(take.next(), "red", 1);
    const Array<double> score(take.next(), "score", 1);
    centers.of(1, kInstants, "centers").of(2, 3, "centers"), ring.of(1, 2, "ring"), red.of(0, kInstants, "red");
    score.of(0, centers.size(0), "score");
    if (ring.size(0) < 3) throw std::invalid_argument("ring has fewer than 3 points");
    unlocked([&] {
      red_light_contacts(centers.data(), static_cast<int>(centers.size(0)), length_m, width_m, ring.data(),
                         static_cast<int>(ring.size(0)), red.data(), score.data());
    });
    return 0;
  });
}

KERNEL(driving_direction) {
  return call("driving_direction", values, count, [](Arguments& take) {
    const Doubles centers(take.next(), "centers", 3);
    const Flags wrong(take.next(), "wrong", 2);
    const Array<double> score(take.next(), "score", 1);
    centers.of(1, kInstants, "centers").of(2, 3, "centers");
    wrong.of(0, centers.size(0), "wrong").of(1, kInstants, "wrong"), score.of(0, centers.size(0), "score");
    unlocked([&] { driving_direction(centers.data(), static_cast<int>(centers.size(0)), wrong.data(), score.data()); });
    return 0;
  });
}

KERNEL(edge_distances) {
  return call("edge_distances", values, count, [](Arguments& take) {
    const Doubles x(take.next(), "x", 1), y(take.next(), "y", 1), edges(take.next(), "edges", 3);
    const double reach_m = take.number();
    const Array<double> distances(take.next(), "distances", 2);
    edges.of(1, 2, "edges").of(2, 2, "edges"), distances.of(0, x.size(0), "distances").of(1, y.size(0), "distances");
    unlocked([&] {
      edge_distances(x.data(), static_cast<int>(x.size(0)), y.data(), static_cast<int>(y.size(0)), edges.data(),
                     static_cast<int>(edges.size(0)), reach_m, distances.data());
    });
    return 0;
  });
}

KERNEL(point_clearances) {
  return call("point_clearances", values, count, [](Arguments& take) {
    const GridArguments grid(take);
    const Doubles points(take.next(), "points", 2);
    const Array<double> clearances(take.next(), "clearances", 1);
    points.of(1, 2, "points"), clearances.of(0, points.size(0), "clearances");
    unlocked([&] { point_clearances(grid.grid(), points.data(), points.size(0), clearances.data()); });
    return 0;
  });
}

KERNEL(box_clearances) {
  return call("box_clearances", values, count, [](Arguments& take) {
    const GridArguments grid(take);
    const Doubles poses(take.next(), "poses", 2), outline(take.next(), "outline", 2);
    const bool is_likely = take.integer();
    const Array<double> found(take.next(), "clearances", 1);
    poses.of(1, 3, "poses"), outline.of(1, 2, "outline"), found.of(0, poses.size(0), "clearances");
    unlocked([&] {
      (is_likely ? likely_box_distances : box_clearances)(grid.grid(), poses.data(), poses.size(0), outline.data(),
                                                          static_cast<int>(outline.size(0)), found.data());
    });
    return 0;
  });
}

KERNEL(comfort_flags) {
  return call("comfort_flags", values, count, [](Arguments& take) {
    const Doubles states(take.next(), "states", 3), weights(take.next(), "weights", 3);
    const Array<const long long> ranges(take.next(), "ranges", 3);
    const long point = take.integer();
    const double ahead_m = take.number();
    const Doubles low(take.next(), "low", 1), high(take.next(), "high", 1);
    const Array<bool> flags(take.next(), "flags", 2);
    const Py_ssize_t samples = states.size(1), blocks = ranges.size(1);
    states.of(2, kStateSize, "states"), low.of(0, 6, "low"), high.of(0, 6, "high");
    weights.of(0, 5, "weights").of(1, samples, "weights").of(2, blocks * kBlock, "weights");
    ranges.of(0, 5, "ranges").of(2, 2, "ranges"), flags.of(0, states.size(0), "flags").of(1, 6, "flags");
    if (blocks * kBlock < samples) throw std::invalid_argument("ranges has too few blocks");
    for (Py_ssize_t i = 0; i < 10 * blocks; ++i)
      if (ranges.data()[i] < 0 || ranges.data()[i] > samples) throw std::invalid_argument("ranges leaves the samples");
    const ComfortFilters filters{static_cast<int>(samples), static_cast<int>(blocks), weights.data(), ranges.data()};
    unlocked([&] {
      comfort_flags(states.data(), static_cast<int>(states.size(0)), filters, static_cast<ComfortPoint>(point), ahead_m,
                    low.data(), high.data(), flags.data());
    });
    return 0;
  });
}

}  // namespace reflectdrive
