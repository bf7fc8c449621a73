#include "tests/planner/random_plan.h"

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "hwprofiles/catalog.h"
#include "models/catalog.h"
#include "planner/cost/cost_model.h"
#include "planner/plan/plan.h"
#include "planner/search/meshes.h"
#include "planner/strategy/validity.h"
#include "tests/planner/corner_strategies.h"

namespace longspan::testing {
namespace {

template <class T>
T one_of(std::mt19937_64& random, const std::vector<T>& values) {
  return values[random() % values.size()];
}

// Norms of the outputs of layers, of some models, by numbers of their own: those of the seed stay
// what they are.
NormPlacement random_placement(uint64_t seed) {
  std::mt19937_64 random(seed + 77);
  return random() % 2 == 0 ? NormPlacement::input : static_cast<NormPlacement>(random() % 3);
}

RandomPlan random_plan_of(uint64_t seed, bool experts) {
  static const HardwareProfile machines[] = {load_hardware("h100-80g"), load_hardware("8xh100-80g"),
                                             load_hardware("2x8xa100-40g")};
  static const ModelSpec models[] = {load_model("llama-3.1-8b"), load_model("gpt-2.7b"),
                                     load_model("qwen3-0.6b")};
  static const ModelSpec with_experts = load_model("qwen3-30b-a3b");
  static const ModelSpec latent = [] {
    const ModelSpec model = load_model("deepseek-v2-lite");
    return model_of_run(model, layer_runs(model).back());
  }();
  std::mt19937_64 random(seed);
  RandomPlan plan;
  do {
    plan.hw = machines[random() % 3];
    StepRequest& request = plan.request;
    request.model = models[random() % 3];
    if (experts) request.model = seed % 2 == 0 ? latent : with_experts;
    request.model.layers = one_of<int64_t>(random, {4, 6, 10, 16, 24});
    if (!experts) request.model.norm_placement = random_placement(seed);
    request.dtype = default_dtype(plan.hw);
    request.microbatches = random() % 8 == 0 ? 3 : 1;
    const ParallelLayout mesh = one_of(random, meshes(request.model, plan.hw, {}));
    const int64_t chunks = one_of<int64_t>(random, {1, 2, 4, 6, 8, 10, 12, 16, 24});
    const int64_t chunk = one_of<int64_t>(random, {2048, 4096, 8192, 16384, 32768});
    const Shape shape{mesh, chunk * chunks, chunk};
    request.sequence = shape.share * mesh.ring;
    request.model = fit_to_length(request.model, request.sequence);
    request.strategy = random() % 2 == 0 ? all_offloaded(shape) : all_resident(shape);
    for (const Knob& knob : knobs(request.model, shape, plan.hw.nvme.capacity_bytes.value > 0)) {
      knob.values[random() % knob.values.size()](request.strategy);
    }
  } while (!is_valid(plan.request.strategy, plan.request.model, plan.request.sequence));
  // A generator of their own, so that the other choices of a seed do not depend on them.
  std::mt19937_64 of_windows(seed + 1);
  if (of_windows() % 4 == 0) {
    plan.request.model.window = one_of<int64_t>(of_windows, {1000, 4096, 16384, 40000, 100000});
    plan.request.model.attention_sinks = of_windows() % 2 == 0;
  }
  std::mt19937_64 of_documents(seed + 2);
  if (of_documents() % 4 == 0 && plan.request.model.positions != Positions::learned) {
    std::map<int64_t, int64_t> counts;
    for (uint64_t i = of_documents() % 3 + 1; i > 0; --i) {
      counts[one_of<int64_t>(of_documents, {1, 512, 5000, 16384, 70000, 1 << 20})] +=
          static_cast<int64_t>(of_documents() % 100) + 1;
    }
    plan.request.model.documents = Documents(counts);
  }
  return plan;
}

}  // namespace

RandomPlan random_plan(uint64_t seed) { return random_plan_of(seed, false); }

RandomPlan random_plan_with_experts(uint64_t seed) { return random_plan_of(seed, true); }

RandomPlan forward_plan(uint64_t seed) {
  RandomPlan plan = seed % 4 == 0   ? sliced_plan(seed)
                    : seed % 4 == 1 ? random_plan_with_experts(seed)
                                    : random_plan(seed);
  plan.request.strategy = for_forward(std::move(plan.request.strategy));
  return plan;
}

RandomPlan sliced_plan(uint64_t seed) {
  for (uint64_t turn = 0;; ++turn) {
    RandomPlan plan = random_plan(seed + 1000 * turn);
    StepRequest& request = plan.request;
    Strategy& s = request.strategy;
    const int64_t chunks = request.sequence / s.chunk_tokens;
    if (chunks < 4 || s.parallel.ring > 1 || s.parallel.tensor > 1) continue;
    // Slices of one block of one chunk; of two blocks; or of one block of two chunks.
    const int64_t kind = static_cast<int64_t>(seed % 3);
    s.block_tokens = s.chunk_tokens * (kind == 2 ? 2 : 1);
    s.parallel.pipeline.slices = kind == 0 ? chunks : chunks / 2;
    s.backward_order = BackwardOrder::q_outer;
    s.layer_input = {Saved::recompute, 1};
    if (seed % 4 == 0 && plan.hw.nvme.capacity_bytes.value > 0) s.kv = Tier::nvme;
    if (is_valid(s, request.model, request.sequence)) return plan;
  }
}

}  // namespace longspan::testing
