// The frames that wait, the most hopeful first. Internal to planner/search.
//
// A frame waits with what is expected of it, in the goal's measure. What candidates took, compared
// with what was expected of their frames, corrects the expectation for frames of the same kind,
// else of the same layout, else for all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "planner/search/kinds.h"
#include "planner/search/ranking.h"

namespace longspan {

struct Waiting {
  size_t frame = 0;
  double expected = 0;
  bool relaxed = false, nvme = false;
  double key = 0;  ///< the expectation, corrected; the queue's own
};

class FrameQueue {
 public:
  /// `frames` must outlive this object.
  FrameQueue(const std::vector<Candidate>& frames, Goal goal);

  void push(Waiting waiting);
  bool empty() const { return heap_.empty(); }
  /// The most hopeful. REQUIRES: not empty.
  Waiting pop();
  /// Meshes of ranks that have frames here, of which nothing was learned.
  size_t unseen() const;
  /// The most hopeful of those whose mesh of ranks little was learned of, and was not taken too
  /// often; none if there is no such frame.
  std::optional<Waiting> pop_unseen();

  void learn(const Waiting& waiting, double measured);
  bool is_known(size_t frame) const;  ///< whether something was learned of its kind

 private:
  /// The least that was measured, in what was expected.
  struct Learned {
    double ratio = std::numeric_limits<double>::infinity();
    int64_t looks = 0;
    bool update(double measured);  ///< whether it fell
  };
  struct Indices {
    int32_t kind = -1, alike = -1, mesh = -1;
  };
  struct Mesh {
    int64_t learned = 0, taken = 0, relaxed = 0;
    bool takes(const Waiting& waiting) const;  // for pop_unseen()
  };
  void index(size_t frame);
  double key_of(const Waiting& waiting) const;

  const std::vector<Candidate>& frames_;
  Goal goal_;
  std::vector<Waiting> heap_;
  bool fallen_ = false;  // a ratio: keys in the heap may be too high
  std::map<Kind, int32_t> kinds_;
  std::map<std::pair<LayoutKey, bool>, int32_t>
      alikes_;  // layouts, with groups of heads or without
  std::map<MeshKey, int32_t> meshes_;
  std::vector<Indices> indices_;  // of frames
  std::vector<Learned> of_kind_, of_alike_;
  std::vector<Mesh> of_mesh_;
  Learned of_all_;
};

}  // namespace longspan
