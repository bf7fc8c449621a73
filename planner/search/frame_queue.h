// A priority queue of frames that have not been evaluated, best expected value first. Internal to
// planner/search.
//
// A frame is queued with its expected value in the goal's measure. The ratios of measured to
// expected values correct the expectation of frames of the same kind, else of the same layout, else
// of all frames.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
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
};

class FrameQueue {
 public:
  /// `frames` must outlive this object. `is_beaten`: whether a bound excludes a frame, by its
  /// index.
  FrameQueue(std::span<const Candidate> frames, Goal goal, std::function<bool(size_t)> is_beaten);

  void push(Waiting waiting);
  /// Removes and returns the frame with the best key of those that are not beaten; none if all are.
  std::optional<Waiting> pop();
  /// The number of meshes with queued frames, not beaten, for which nothing was learned.
  size_t unseen();
  /// The best frame among meshes with few learned values that were not popped too often; none if
  /// there is no such frame.
  std::optional<Waiting> pop_unseen();
  /// Queues beaten frames again. Call when they may no longer be beaten.
  void restore();

  void learn(const Waiting& waiting, double measured);
  bool is_known(size_t frame) const;  ///< whether something was learned for its kind

 private:
  /// The least ratio of measured to expected value.
  struct Learned {
    double ratio = std::numeric_limits<double>::infinity();
    int64_t looks = 0;
    void update(double measured);
  };
  struct Mesh {
    int64_t learned = 0, taken = 0, relaxed = 0;
    bool takes(bool is_relaxed) const;  // whether pop_unseen() may take a frame
  };
  /// The queued frames of a kind. One factor corrects all their expectations, so their order never
  /// changes.
  struct Bucket {
    int32_t alike = -1, mesh = -1;
    std::optional<size_t> listed;               // its place in queued_
    std::array<std::vector<Waiting>, 2> heaps;  // by whether frames are relaxed
    Learned learned;
  };
  /// The keys of the first frames of a bucket's heaps; infinite if empty. They lie together, as
  /// every search for the best reads all.
  struct Listed {
    std::array<double, 2> keys;
    Bucket* bucket = nullptr;
  };
  struct Place {
    Bucket* bucket = nullptr;
    size_t heap = 0;
  };
  int32_t bucket_of(size_t frame);
  double factor_of(const Bucket& bucket) const;
  void set_keys(const Bucket& bucket);
  /// Removes beaten frames from the front of a bucket's heaps.
  void drop_beaten(Bucket& bucket);
  /// The place of the frame with the best key among those for which `may` holds of the bucket and
  /// whether it is relaxed.
  template <class May>
  Place best(const May& may);
  template <class May>
  Place best_listed(const May& may) const;
  Waiting pop(const Place& place);

  std::span<const Candidate> frames_;
  Goal goal_;
  std::function<bool(size_t)> is_beaten_;
  std::vector<Waiting> beaten_;  // no longer queued
  std::map<Kind, int32_t> kinds_;
  std::map<std::pair<LayoutKey, bool>, int32_t>
      alikes_;  // by layout and whether heads are in groups
  std::map<MeshKey, int32_t> meshes_;
  std::vector<int32_t> of_frame_;  // the bucket
  std::deque<Bucket> buckets_;     // by kind
  std::vector<Listed> queued_;     // all with frames, in no order
  std::vector<Learned> of_alike_;
  std::vector<Mesh> of_mesh_;
  Learned of_all_;
};

}  // namespace longspan
