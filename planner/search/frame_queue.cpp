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
  if (!bucket.listed) {
    bucket.listed = queued_.size();
    queued_.push_back({{}, &bucket});
  }
  set_keys(bucket);
}

void FrameQueue::set_keys(const Bucket& bucket) {
  const double factor = factor_of(bucket);
  for (const size_t heap : {0, 1}) {
    const std::vector<Waiting>& own = bucket.heaps[heap];
    queued_[*bucket.listed].keys[heap] = own.empty() ? kInfinity : own.front().expected * factor;
  }
}

void FrameQueue::restore() {
  for (const Waiting& waiting : std::exchange(beaten_, {})) push(waiting);
}

template <class May>
FrameQueue::Place FrameQueue::best_listed(const May& may) const {
  Place best;
  double least = kInfinity;
  for (const Listed& listed : queued_) {
    for (const size_t heap : {0, 1}) {
      const double key = listed.keys[heap];
      if (key > least || key == kInfinity || !may(*listed.bucket, heap == 1)) continue;
      if (key == least &&
          listed.bucket->heaps[heap].front().frame > best.bucket->heaps[best.heap].front().frame) {
        continue;
      }
      best = {listed.bucket, heap};
      least = key;
    }
  }
  return best;
}

// A frame is asked whether it is beaten when it comes first, as every better result beats more.
template <class May>
FrameQueue::Place FrameQueue::best(const May& may) {
  while (true) {
    const Place best = best_listed(may);
    if (best.bucket == nullptr) return best;
    if (!is_beaten_(best.bucket->heaps[best.heap].front().frame)) return best;
    drop_beaten(*best.bucket);
  }
}

void FrameQueue::drop_beaten(Bucket& bucket) {
  for (const size_t heap : {0, 1}) {
    while (!bucket.heaps[heap].empty() && is_beaten_(bucket.heaps[heap].front().frame)) {
      beaten_.push_back(pop({&bucket, heap}));
    }
  }
}

Waiting FrameQueue::pop(const Place& place) {
  Bucket& bucket = *place.bucket;
  std::vector<Waiting>& heap = bucket.heaps[place.heap];
  std::pop_heap(heap.begin(), heap.end(), Later());
  const Waiting next = heap.back();
  heap.pop_back();
  if (bucket.heaps[0].empty() && bucket.heaps[1].empty()) {
    const size_t own = *std::exchange(bucket.listed, std::nullopt);
    queued_[own] = queued_.back();
    queued_.pop_back();
    if (own < queued_.size()) queued_[own].bucket->listed = own;
  } else {
    set_keys(bucket);
  }
  return next;
}

std::optional<Waiting> FrameQueue::pop() {
  const Place place = best([](const Bucket&, bool) { return true; });
  if (place.bucket == nullptr) return std::nullopt;
  return pop(place);
}

bool FrameQueue::Mesh::takes(bool is_relaxed) const {
  return learned < kMeshLooks && (is_relaxed ? taken < kMeshLooks : relaxed < kMeshRelaxed);
}

size_t FrameQueue::unseen() {
  std::set<int32_t> meshes;
  for (Bucket& bucket : buckets_) {
    drop_beaten(bucket);
    if (bucket.listed && of_mesh_[static_cast<size_t>(bucket.mesh)].learned == 0) {
      meshes.insert(bucket.mesh);
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
  return pop(place);
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
  Learned& alike = of_alike_[static_cast<size_t>(own.alike)];
  const double before = alike.ratio, before_of_all = of_all_.ratio;
  ++of_mesh_[static_cast<size_t>(own.mesh)].learned;
  own.learned.update(ratio);
  alike.update(ratio);
  of_all_.update(ratio);
  if (alike.ratio < before || of_all_.ratio < before_of_all) {
    for (const Listed& listed : queued_) set_keys(*listed.bucket);
  } else if (own.listed) {
    set_keys(own);
  }
}

}  // namespace longspan
