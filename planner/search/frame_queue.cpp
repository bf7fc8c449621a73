#include "planner/search/frame_queue.h"

#include <algorithm>
#include <set>

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
    return a.key != b.key ? a.key > b.key : a.frame > b.frame;
  }
};

template <class Key>
int32_t index_of(std::map<Key, int32_t>& known, const Key& key) {
  return known.try_emplace(key, static_cast<int32_t>(known.size())).first->second;
}

}  // namespace

FrameQueue::FrameQueue(std::span<const Candidate> frames, Goal goal)
    : frames_(frames), goal_(goal), indices_(frames.size()) {}

bool FrameQueue::Learned::update(double measured) {
  const bool falls = measured < ratio;
  ratio = std::min(ratio, measured);
  ++looks;
  return falls;
}

void FrameQueue::index(size_t frame) {
  Indices& own = indices_[frame];
  if (own.kind >= 0) return;
  const Candidate& c = frames_[frame];
  own.kind = index_of(kinds_, kind_of(c));
  // Head groups overlap differently from chunks.
  own.alike = index_of(alikes_, {layout_of(c), c.strategy.head_groups > 1});
  own.mesh = index_of(meshes_, mesh_of(c));
  of_mesh_.resize(meshes_.size());
  of_kind_.resize(kinds_.size());
  of_alike_.resize(alikes_.size());
}

void FrameQueue::push(Waiting waiting) {
  index(waiting.frame);
  waiting.key = key_of(waiting);
  heap_.push_back(waiting);
  std::push_heap(heap_.begin(), heap_.end(), Later());
}

Waiting FrameQueue::pop() {
  if (fallen_) {
    for (Waiting& waiting : heap_) waiting.key = key_of(waiting);
    std::make_heap(heap_.begin(), heap_.end(), Later());
    fallen_ = false;
  }
  while (true) {
    std::pop_heap(heap_.begin(), heap_.end(), Later());
    const double key = key_of(heap_.back());
    if (key <= heap_.back().key) break;
    heap_.back().key = key;
    std::push_heap(heap_.begin(), heap_.end(), Later());
  }
  const Waiting next = heap_.back();
  heap_.pop_back();
  return next;
}

bool FrameQueue::Mesh::takes(const Waiting& waiting) const {
  return learned < kMeshLooks && (waiting.relaxed ? taken < kMeshLooks : relaxed < kMeshRelaxed);
}

size_t FrameQueue::unseen() const {
  std::set<int32_t> meshes;
  for (const Waiting& waiting : heap_) {
    const int32_t mesh = indices_[waiting.frame].mesh;
    if (of_mesh_[static_cast<size_t>(mesh)].learned == 0) meshes.insert(mesh);
  }
  return meshes.size();
}

std::optional<Waiting> FrameQueue::pop_unseen() {
  auto best = heap_.end();
  for (auto it = heap_.begin(); it != heap_.end(); ++it) {
    if (!of_mesh_[static_cast<size_t>(indices_[it->frame].mesh)].takes(*it)) continue;
    it->key = key_of(*it);
    if (best == heap_.end() || Later()(*best, *it)) best = it;
  }
  if (best == heap_.end()) return std::nullopt;
  const Waiting next = *best;
  Mesh& mesh = of_mesh_[static_cast<size_t>(indices_[next.frame].mesh)];
  ++(next.relaxed ? mesh.taken : mesh.relaxed);
  *best = heap_.back();
  heap_.pop_back();
  fallen_ = true;  // the heap has lost its order
  return next;
}

bool FrameQueue::is_known(size_t frame) const {
  return of_kind_[static_cast<size_t>(indices_[frame].kind)].looks > 0;
}

double FrameQueue::key_of(const Waiting& waiting) const {
  const Indices& own = indices_[waiting.frame];
  const Learned& kind = of_kind_[static_cast<size_t>(own.kind)];
  const auto looks = static_cast<double>(kind.looks);
  if (goal_ != Goal::fastest) return waiting.expected * (1 + kTiredOfMemory * looks);
  if (kind.looks > 0) return waiting.expected * kind.ratio * (1 + kTired * looks);
  const Learned& alike = of_alike_[static_cast<size_t>(own.alike)];
  const Learned& likely = alike.looks > 0 ? alike : of_all_;
  return waiting.expected * (likely.looks > 0 ? std::max(1.0, kUnknown * likely.ratio) : 1);
}

void FrameQueue::learn(const Waiting& waiting, double measured) {
  if (waiting.expected <= 0) return;
  const double ratio = measured / waiting.expected;
  const Indices& own = indices_[waiting.frame];
  ++of_mesh_[static_cast<size_t>(own.mesh)].learned;
  for (Learned* learned : {&of_kind_[static_cast<size_t>(own.kind)],
                           &of_alike_[static_cast<size_t>(own.alike)], &of_all_}) {
    fallen_ |= learned->update(ratio);
  }
}

}  // namespace longspan
