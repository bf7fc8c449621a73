// Single steps from a candidate, for refine.h and repair.h. Internal to planner/search.
//
// A step changes one knob, or one group of knobs that belong together (where the states live, with
// the ZeRO stage). The layout of ranks and the chunk stay.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/search/space.h"

namespace longspan {

class Steps {
 public:
  /// `options` must outlive this object. `nvme` includes values that use a file.
  Steps(const ModelSpec& model, const SpaceOptions& options, bool nvme)
      : model_(model), options_(options), nvme_(nvme) {}

  static int knobs();
  /// Valid candidates that differ from `c` in one knob. REQUIRES: 0 <= knob < knobs().
  std::vector<Candidate> of(int knob, const Candidate& c) const;

 private:
  using Strategies = std::vector<Strategy>;
  template <SavedPolicy Strategy::*policy>
  void saved(const Candidate& c, Strategies& all) const;
  void projection_tile(const Candidate& c, Strategies& all) const;
  void mlp_tile(const Candidate& c, Strategies& all) const;
  void loss_tile(const Candidate& c, Strategies& all) const;
  void prefetch_depth(const Candidate& c, Strategies& all) const;
  void offload_window(const Candidate& c, Strategies& all) const;
  void block(const Candidate& c, Strategies& all) const;
  void kv(const Candidate& c, Strategies& all) const;
  void between_uses(const Candidate& c, Strategies& all) const;
  void backward_order(const Candidate& c, Strategies& all) const;
  void overlap(const Candidate& c, Strategies& all) const;
  void states(const Candidate& c, Strategies& all) const;

  using Knob = void (Steps::*)(const Candidate&, Strategies&) const;
  static const std::vector<Knob>& all_knobs();

  const ModelSpec model_;
  const SpaceOptions& options_;
  bool nvme_;
};

}  // namespace longspan
