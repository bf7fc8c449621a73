// A priority queue of frames that have not been evaluated, best expected value first. Internal to
// planner/search.
//
// A frame is queued with its expected value in the goal's measure. The ratios of measured to
// expected values correct the expectation of frames of the same kind, else of the same layout, else
// of all frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "planner/search/kinds.h"
#include "planner/search/ranking.h"

namespace longspan {

struct Waiting {
  size_t frame = 0;
  double expected = 0;
  bool relaxed = false, nvme = false;
  double key = 0;  ///< the corrected expectation; set by the queue
};

class FrameQueue {
 public:
  /// `frames` must outlive this object.
  FrameQueue(std::span<const Candidate> frames, Goal goal);

  void push(Waiting waiting);
  bool empty() const { return heap_.empty(); }
  /// Removes and returns the frame with the best key. REQUIRES: not empty.
  Waiting pop();
  /// The number of meshes with queued frames for which nothing was learned.
  size_t unseen() const;
  /// The best frame among meshes with few learned values that were not popped too often; none if
  /// there is no such frame.
  std::optional<Waiting> pop_unseen();

  void learn(const Waiting& waiting, double measured);
  bool is_known(size_t frame) const;  ///< whether something was learned for its kind

 private:
  /// The least ratio of measured to expected value.
  struct Learned {
    double ratio = std::numeric_limits<double>::infinity();
    int64_t looks = 0;
    bool update(double measured);  ///< returns whether the ratio fell
  };
  struct Indices {
    int32_t kind = -1, alike = -1, mesh = -1;
  };
  struct Mesh {
    int64_t learned = 0, taken = 0, relaxed = 0;
    bool takes(const Waiting& waiting) const;  // whether pop_unseen() may take it
  };
  void index(size_t frame);
  double key_of(const Waiting& waiting) const;

  std::span<const Candidate> frames_;
  Goal goal_;
  std::vector<Waiting> heap_;
  bool fallen_ = false;  // a ratio fell: keys in the heap may be too high
  std::map<Kind, int32_t> kinds_;
  std::map<std::pair<LayoutKey, bool>, int32_t>
      alikes_;  // by layout and whether heads are in groups
  std::map<MeshKey, int32_t> meshes_;
  std::vector<Indices> indices_;  // by frame
  std::vector<Learned> of_kind_, of_alike_;
  std::vector<Mesh> of_mesh_;
  Learned of_all_;
};

}  // namespace longspan
