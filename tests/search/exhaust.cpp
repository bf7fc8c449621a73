// Every combination of knobs, for questions small enough.
#include <algorithm>
#include <array>
#include <functional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "planner/plan/plan.h"
#include "tests/search/improve.h"
#include "tests/search/mutate.h"

namespace longspan::testing {
namespace {

constexpr int64_t kMostChunks = 64;
constexpr int64_t kLayers = 4;     // of a model that is small
constexpr size_t kMeasured = 200;  // of all, measured by full simulation

struct Rough {
  double value = 0;
  Answering answer;
};

void each_saved(Answering answer, bool with_nvme,
                const std::function<void(const Answering&)>& visit) {
  std::vector<Saved> all = {Saved::keep, Saved::recompute, Saved::host};
  if (with_nvme) all.push_back(Saved::nvme);
  Strategy& s = answer.strategy;
  for (const Saved input : all) {
    if (input == Saved::recompute) continue;
    s.layer_input.where = input;
    for (const Saved qkv : all) {
      s.qkv.where = qkv;
      for (const Saved out : all) {
        s.attention_out.where = out;
        for (const Saved mlp : all) {
          s.mlp_input.where = mlp;
          for (const Saved inner : all) {
            s.mlp_inner.where = inner;
            visit(answer);
          }
        }
      }
    }
  }
}

void each_shape(const Question& q, const std::function<void(const Answering&)>& visit) {
  constexpr std::array<Tier, 2> kTiers = {Tier::device, Tier::host};
  Answering answer{q.sequence, {}};
  Strategy& s = answer.strategy;
  s.preset = "auto";
  for (const int64_t chunk : divisors(q.sequence)) {
    if (q.sequence / chunk > kMostChunks || (q.chunk > 0 && q.chunk != chunk)) continue;
    s.chunk_tokens = chunk;
    const bool whole = chunk == q.sequence;
    for (const int64_t block : {q.sequence, chunk}) {
      if (whole && block != q.sequence) continue;
      s.block_tokens = block;
      for (const Tier kv : kTiers) {
        for (const Tier between_uses : kTiers) {
          for (const BackwardOrder order : {BackwardOrder::q_outer, BackwardOrder::kv_outer}) {
            s.kv = kv;
            s.between_uses = between_uses;
            s.backward_order = order;
            if (whole && (kv != Tier::device || between_uses != Tier::device)) continue;
            visit(answer);
          }
        }
      }
    }
  }
}

}  // namespace

void exhaust(Row& row, Examiner& examiner) {
  const Question& q = row.question;
  if (examiner.hardware().devices() > 1 || examiner.model().layers > kLayers || q.sequence == 0) {
    throw bad_input("{}: every combination is tried of small models on one device only", row.id);
  }
  const bool with_nvme = capacities(examiner.hardware())[2] > 0;
  std::vector<Rough> best;
  const auto look = [&](const Answering& answer) {
    if (!examiner.admits(answer)) return;
    const auto rough = examiner.rough(answer);
    if (!rough || rough->excess > 0) return;
    best.push_back({rough->value, answer});
    if (best.size() < 20 * kMeasured) return;
    std::nth_element(best.begin(), best.begin() + kMeasured, best.end(),
                     [](const Rough& a, const Rough& b) { return a.value < b.value; });
    best.resize(kMeasured);
  };
  constexpr Tier device = Tier::device, host = Tier::host;
  constexpr std::array<Tier, 3> kStates[] = {
      {device, device, device}, {device, device, host}, {device, host, host}, {host, host, host}};
  each_shape(q, [&](Answering shape) {
    for (const auto& [parameters, gradients, optimizer] : kStates) {
      shape.strategy.parameters = parameters;
      shape.strategy.gradients = gradients;
      shape.strategy.optimizer = optimizer;
      for (const int64_t tile : {0, 64}) {
        shape.strategy.mlp_tile = shape.strategy.loss_tile = shape.strategy.projection_tile = tile;
        for (const int64_t ahead : {0, 1}) {
          shape.strategy.prefetch_depth = shape.strategy.offload_window = ahead;
          each_saved(shape, with_nvme, look);
        }
      }
    }
  });
  std::stable_sort(best.begin(), best.end(),
                   [](const Rough& a, const Rough& b) { return a.value < b.value; });
  best.resize(std::min(best.size(), kMeasured));
  for (const Rough& rough : best) {
    if (const auto m = examiner.exact(rough.answer)) {
      row.offer(rough.answer, *m, "all combinations of some knobs");
    }
  }
}

}  // namespace longspan::testing
