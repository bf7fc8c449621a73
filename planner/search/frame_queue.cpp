#include "planner/search/frame_queue.h"

#include <algorithm>
#include <set>
#include <utility>

namespace longspan {
namespace {

// Every look at a kind raises the keys of its frames by this part, so that other kinds get looks.
constexpr double kTired = 0.004;
constexpr double kTiredOfMemory = 0.1;  // for memory goals, where packing matters more than bounds
// A kind without results is expected to reach this part of the ratio of others.
constexpr double kUnknown = 0.95;
// The number of frames of a mesh that pop_unseen() returns, to relax and to evaluate.
constexpr int64_t kMeshRelaxed = 64, kMeshLooks = 3;

struct Later {
  bool operator()(const Waiting& a, const Waiting& b) const {
    return a.expected != b.expected ? a.expected > b.expected : a.frame > b.frame;
  }
};

template <class Key>
int32_t index_of(std::map<Key, int32_t>& known, const Key& key) {
  return known.try_emplace(key, static_cast<int32_t>(known.size())).first->second;
}

}  // namespace

FrameQueue::FrameQueue(std::span<const Candidate> frames, Goal goal,
                       std::function<bool(size_t)> is_beaten)
    : frames_(frames),
      goal_(goal),
      is_beaten_(std::move(is_beaten)),
      of_frame_(frames.size(), -1) {}

void FrameQueue::Learned::update(double measured) {
  ratio = std::min(ratio, measured);
  ++looks;
}

int32_t FrameQueue::bucket_of(size_t frame) {
  int32_t& own = of_frame_[frame];
  if (own >= 0) return own;
  const Candidate& c = frames_[frame];
  own = index_of(kinds_, kind_of(c));
  if (kinds_.size() > buckets_.size()) {
    Bucket& bucket = buckets_.emplace_back();
    // Head groups overlap differently from chunks.
    bucket.alike = index_of(alikes_, {layout_of(c), c.strategy.head_groups > 1});
    bucket.mesh = index_of(meshes_, mesh_of(c));
    of_mesh_.resize(meshes_.size());
    of_alike_.resize(alikes_.size());
  }
  return own;
}

void FrameQueue::push(Waiting waiting) {
  Bucket& bucket = buckets_[static_cast<size_t>(bucket_of(waiting.frame))];
  std::vector<Waiting>& heap = bucket.heaps[waiting.relaxed ? 1 : 0];
  heap.push_back(waiting);
  std::push_heap(heap.begin(), heap.end(), Later());
  if (!std::exchange(bucket.listed, true)) queued_.push_back(&bucket);
}

void FrameQueue::restore() {
  for (const Waiting& waiting : std::exchange(beaten_, {})) push(waiting);
}

template <class May>
FrameQueue::Place FrameQueue::best(const May& may) {
  Place best;
  double least = 0;
  for (size_t i = 0; i < queued_.size();) {
    Bucket& bucket = *queued_[i];
    for (std::vector<Waiting>& heap : bucket.heaps) {
      while (!heap.empty() && is_beaten_(heap.front().frame)) beaten_.push_back(pop(heap));
    }
    if (bucket.empty()) {
      bucket.listed = false;
      queued_[i] = queued_.back();
      queued_.pop_back();
      continue;
    }
    ++i;
    std::optional<double> factor;
    for (const size_t heap : {0, 1}) {
      if (bucket.heaps[heap].empty() || !may(bucket, heap == 1)) continue;
      if (!factor) factor = factor_of(bucket);
      const Waiting& own = bucket.heaps[heap].front();
      const double key = own.expected * *factor;
      if (best.bucket == nullptr || key < least ||
          (key == least && own.frame < best.bucket->heaps[best.heap].front().frame)) {
        best = {&bucket, heap};
        least = key;
      }
    }
  }
  return best;
}

Waiting FrameQueue::pop(std::vector<Waiting>& heap) {
  std::pop_heap(heap.begin(), heap.end(), Later());
  const Waiting next = heap.back();
  heap.pop_back();
  return next;
}

std::optional<Waiting> FrameQueue::pop() {
  const Place place = best([](const Bucket&, bool) { return true; });
  if (place.bucket == nullptr) return std::nullopt;
  return pop(place.bucket->heaps[place.heap]);
}

bool FrameQueue::Mesh::takes(bool is_relaxed) const {
  return learned < kMeshLooks && (is_relaxed ? taken < kMeshLooks : relaxed < kMeshRelaxed);
}

size_t FrameQueue::unseen() const {
  std::set<int32_t> meshes;
  for (const Bucket* bucket : queued_) {
    if (!bucket->empty() && of_mesh_[static_cast<size_t>(bucket->mesh)].learned == 0) {
      meshes.insert(bucket->mesh);
    }
  }
  return meshes.size();
}

std::optional<Waiting> FrameQueue::pop_unseen() {
  const Place place = best([&](const Bucket& bucket, bool is_relaxed) {
    return of_mesh_[static_cast<size_t>(bucket.mesh)].takes(is_relaxed);
  });
  if (place.bucket == nullptr) return std::nullopt;
  Mesh& mesh = of_mesh_[static_cast<size_t>(place.bucket->mesh)];
  ++(place.heap == 1 ? mesh.taken : mesh.relaxed);
  return pop(place.bucket->heaps[place.heap]);
}

bool FrameQueue::is_known(size_t frame) const {
  return buckets_[static_cast<size_t>(of_frame_[frame])].learned.looks > 0;
}

double FrameQueue::factor_of(const Bucket& bucket) const {
  const Learned& kind = bucket.learned;
  const auto looks = static_cast<double>(kind.looks);
  if (goal_ != Goal::fastest) return 1 + kTiredOfMemory * looks;
  if (kind.looks > 0) return kind.ratio * (1 + kTired * looks);
  const Learned& alike = of_alike_[static_cast<size_t>(bucket.alike)];
  const Learned& likely = alike.looks > 0 ? alike : of_all_;
  return likely.looks > 0 ? std::max(1.0, kUnknown * likely.ratio) : 1;
}

void FrameQueue::learn(const Waiting& waiting, double measured) {
  if (waiting.expected <= 0) return;
  const double ratio = measured / waiting.expected;
  Bucket& own = buckets_[static_cast<size_t>(of_frame_[waiting.frame])];
  ++of_mesh_[static_cast<size_t>(own.mesh)].learned;
  own.learned.update(ratio);
  of_alike_[static_cast<size_t>(own.alike)].update(ratio);
  of_all_.update(ratio);
}

}  // namespace longspan
