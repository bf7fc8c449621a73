#include "tests/search/mutate.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "planner/plan/plan.h"
#include "planner/schedule/registry.h"

namespace longspan::testing {
namespace {

constexpr int64_t kLeastChunk = 256;

template <class T>
T one_of(Random& random, std::initializer_list<T> values) {
  return *(values.begin() + random() % values.size());
}
template <class T>
T one_of(Random& random, const std::vector<T>& values) {
  return values[random() % values.size()];
}

int64_t of_ring(const ParallelLayout& p) { return p.ring > 1 ? 2 * p.ring : 1; }

}  // namespace

std::vector<int64_t> divisors(int64_t number) {
  std::vector<int64_t> low, high;
  for (int64_t i = 1; i * i <= number; ++i) {
    if (number % i != 0) continue;
    low.push_back(i);
    if (i != number / i) high.push_back(number / i);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

Mutator::Mutator(const Examiner& examiner)
    : examiner_(examiner),
      with_nvme_(capacities(examiner.hardware())[2] > 0),
      may_pipe_((examiner.hardware().device.backend != "cpu" ||
                 !examiner.question().parallel.admits_flat()) &&
                examiner.question().parallel.admits_pipelines() &&
                examiner.question().strategy == "auto" &&
                examiner.question().verb == Question::Verb::plan) {}

Answering Mutator::changed(const Answering& answer, Random& random) const {
  Answering next = answer;
  const int64_t times = one_of<int64_t>(random, {1, 1, 1, 2, 2, 3, 4});
  for (int64_t i = 0; i < times; ++i) change_one(next, random);
  repair(next);
  return next;
}

Answering Mutator::start(int64_t tokens, Random& random) const {
  const Question& q = examiner_.question();
  Answering answer{tokens, {}};
  Strategy& s = answer.strategy;
  const std::string preset = one_of(random, preset_names());
  s.parallel.data = examiner_.hardware().devices();
  change_mesh(answer, random);
  const ParallelLayout mesh = s.parallel;
  s = make_preset(preset, examiner_.model(), tokens, 0, mesh);
  s.preset = "auto";
  s.deterministic = q.deterministic;
  if (random() % 2 == 0) change_chunk(answer, random);
  for (int i = 0; i < 4; ++i) change_one(answer, random);
  repair(answer);
  return answer;
}

Answering Mutator::at_length(const Answering& answer, int64_t tokens) const {
  Answering next = answer;
  Strategy& s = next.strategy;
  const int64_t share = answer.tokens / s.parallel.ring;
  const bool one_chunk = s.chunk_tokens * of_ring(s.parallel) == answer.tokens;
  const bool one_block = s.block_tokens == share;
  next.tokens = tokens;
  if (one_chunk) s.chunk_tokens = tokens / of_ring(s.parallel);
  s.block_tokens = one_block || one_chunk ? tokens / s.parallel.ring : s.block_tokens;
  repair(next);
  return next;
}

std::vector<int64_t> Mutator::chunks_of(const Answering& answer) const {
  const ParallelLayout& p = answer.strategy.parallel;
  const Question& q = examiner_.question();
  if (q.chunk > 0) return {q.chunk};
  const int64_t share = answer.tokens / of_ring(p);
  std::vector<int64_t> chunks;
  for (const int64_t chunk : divisors(share)) {
    if (chunk % p.ulysses != 0 || (chunk < std::min(kLeastChunk, share / 8) && chunk < share)) {
      continue;
    }
    Answering probe = answer;
    probe.strategy.chunk_tokens = chunk;
    probe.strategy.head_groups = 1;
    if (ops_of(examiner_.model(), q.microbatches, probe) < kMostOps || chunk == share) {
      chunks.push_back(chunk);
    }
  }
  return chunks;
}

void Mutator::change_chunk(Answering& answer, Random& random) const {
  const std::vector<int64_t> chunks = chunks_of(answer);
  if (chunks.empty()) return;
  answer.strategy.chunk_tokens = one_of(random, chunks);
  if (answer.strategy.chunk_tokens != answer.tokens) answer.strategy.head_groups = 1;
  change_block(answer, random);
}

void Mutator::change_block(Answering& answer, Random& random) const {
  Strategy& s = answer.strategy;
  const int64_t share = answer.tokens / s.parallel.ring / s.parallel.pipeline.slices;
  if (share % s.chunk_tokens != 0) {
    s.block_tokens = share;
    return;
  }
  std::vector<int64_t> blocks;
  for (const int64_t times : divisors(share / s.chunk_tokens)) {
    blocks.push_back(times * s.chunk_tokens);
  }
  s.block_tokens = one_of(random, {s.chunk_tokens, share, one_of(random, blocks)});
}

void Mutator::change_saved(Strategy& s, Random& random) const {
  const std::array<SavedPolicy*, 5> saved = {&s.layer_input, &s.qkv, &s.attention_out, &s.mlp_input,
                                             &s.mlp_inner};
  const size_t which = random() % saved.size();
  SavedPolicy& policy = *saved[which];
  const int64_t layers = examiner_.model().layers;
  const auto share = [&](int64_t count) {
    policy.fraction = static_cast<double>(count) / static_cast<double>(layers);
  };
  if (policy.where != Saved::keep && random() % 3 == 0) {  // some layers more or fewer
    const auto now = static_cast<int64_t>(policy.fraction * static_cast<double>(layers) + 0.5);
    const int64_t step = one_of<int64_t>(random, {-8, -4, -2, -1, 1, 2, 4, 8});
    return share(std::clamp<int64_t>(now + step, 1, layers));
  }
  policy = {};
  policy.where =
      one_of(random, {Saved::keep, Saved::host, Saved::host, with_nvme_ ? Saved::nvme : Saved::host,
                      which == 0 ? Saved::keep : Saved::recompute,
                      which == 0 ? Saved::host : Saved::recompute});
  if (policy.where != Saved::keep && random() % 2 == 0) {
    share(1 + static_cast<int64_t>(random() % static_cast<uint64_t>(layers)));
  }
}

void Mutator::change_tile(const Answering& answer, Strategy& s, Random& random) const {
  const std::array<int64_t Strategy::*, 3> tiles = {&Strategy::projection_tile, &Strategy::mlp_tile,
                                                    &Strategy::loss_tile};
  const int64_t rows = answer.tokens / s.parallel.ring / s.parallel.ulysses;
  s.*tiles[random() % 3] = one_of<int64_t>(
      random, {0, 64, 128, 256, 512, 1024, 2048, 4096, 8192, rows / 2, rows / 3, rows / 4});
}

void Mutator::change_mesh(Answering& answer, Random& random) const {
  ParallelLayout& p = answer.strategy.parallel;
  const ParallelChoice& choice = examiner_.question().parallel;
  const Pipeline before = p.pipeline;
  int64_t left = p.ranks();
  const auto take = [&](const std::optional<int64_t>& fixed, int64_t most) {
    std::vector<int64_t> all = divisors(left);
    std::erase_if(all, [&](int64_t d) { return d > most; });
    int64_t degree = fixed.value_or(one_of(random, all));
    if (left % degree != 0) degree = 1;
    left /= degree;
    return degree;
  };
  p.pipeline = {};
  if (may_pipe_ && (choice.pipeline || choice.fixes_pipeline() || random() % 4 == 0)) {
    p.pipeline.stages = take(choice.pipeline, examiner_.model().layers);
    if (p.pipeline.stages > 1 && before.stages > 1) {
      const int64_t stages = std::exchange(p.pipeline, before).stages;
      p.pipeline.stages = stages;
    }
  }
  p.tensor = take(choice.tensor, random() % 3 == 0 ? 8 : 1);
  p.ulysses = take(choice.ulysses, p.tensor > 1 ? 1 : 64);
  p.ring = take(choice.ring, p.tensor > 1 || random() % 2 == 0 ? 1 : 16);
  p.data = left;
  p.zero = one_of<int64_t>(random, {0, 1, 2, 3, 3});
  if (p.pipeline.stages > 1 && before.stages <= 1) change_pipeline(answer.strategy, random);
  // Chunks that suit the new mesh, with as many tokens as before if possible.
  Strategy& s = answer.strategy;
  const std::vector<int64_t> chunks = chunks_of(answer);
  if (chunks.empty()) return;
  const auto nearest = std::min_element(chunks.begin(), chunks.end(), [&](int64_t a, int64_t b) {
    return std::abs(a - s.chunk_tokens) < std::abs(b - s.chunk_tokens);
  });
  const bool whole = s.block_tokens != s.chunk_tokens;
  s.chunk_tokens = *nearest;
  s.block_tokens = whole ? answer.tokens / p.ring / p.pipeline.slices : s.chunk_tokens;
}

void Mutator::change_pipeline(Strategy& s, Random& random) const {
  Pipeline& pipe = s.parallel.pipeline;
  const ParallelChoice& choice = examiner_.question().parallel;
  const int64_t k = static_cast<int64_t>(random() % 4);
  if (k == 0 || pipe.schedule == "1f1b") {
    const std::vector<std::string_view> names = plannable_schedules();
    pipe.schedule = one_of(random, names);
    const ScheduleFamily& family = schedule_family(pipe.schedule);
    // A family that arranges itself within memory is planned only if requested.
    if (family.takes_memory_limit && choice.schedule != std::string(pipe.schedule))
      pipe.schedule = "1f1b";
    pipe.virtual_stages = schedule_family(pipe.schedule).least_virtual_stages;
  }
  if (choice.schedule) pipe.schedule = schedule_family(*choice.schedule).name;
  const ScheduleFamily& family = schedule_family(pipe.schedule);
  if (!takes_virtual_stages(family, pipe.virtual_stages) || k == 1) {
    pipe.virtual_stages = family.most_virtual_stages == 0
                              ? one_of<int64_t>(random, {2, 2, 3, 4, 5, 8})
                              : family.least_virtual_stages;
  }
  if (k == 2) pipe.slices = one_of<int64_t>(random, {2, 4, 6, 8, 12, 16, 24, 32, 64});
  if (!family.sliced) pipe.slices = 1;
  if (family.sliced && pipe.slices == 1) pipe.slices = 8;
  pipe.equal_work = family.sliced && random() % 2 == 0;
  pipe.in_flight = family.takes_memory_limit && random() % 2 == 0
                       ? 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(2 * pipe.stages))
                       : 0;
}

void Mutator::change_head_groups(Answering& answer, Random& random) const {
  Strategy& s = answer.strategy;
  if (s.parallel.ring > 1 || s.parallel.tensor > 1) return;
  s.head_groups = one_of<int64_t>(random, {1, 1, 2, 4, 8});
  if (s.head_groups == 1) return;
  s.chunk_tokens = s.block_tokens = answer.tokens;
}

void Mutator::change_one(Answering& answer, Random& random) const {
  Strategy& s = answer.strategy;
  const auto tier = [&] { return one_of(random, {Tier::device, Tier::host}); };
  switch (random() % 19) {
    case 0:
    case 1:
      return change_chunk(answer, random);
    case 2:
      return change_block(answer, random);
    case 3:
      s.kv = tier();
      return;
    case 4:
      s.between_uses = tier();
      return;
    case 5:
      s.prefetch_depth = one_of<int64_t>(random, {0, 1, 2, 3, 4, 6, 8});
      return;
    case 6:
      s.offload_window = one_of<int64_t>(random, {0, 1, 2, 3, 4});
      return;
    case 7:
      s.backward_order = one_of(random, {BackwardOrder::kv_outer, BackwardOrder::q_outer});
      return;
    case 8:
    case 9:
    case 10:
    case 11:
      return change_saved(s, random);
    case 12:
      return change_tile(answer, s, random);
    case 13: {
      constexpr Tier device = Tier::device, host = Tier::host, nvme = Tier::nvme;
      const auto [parameters, gradients, optimizer] =
          one_of<std::array<Tier, 3>>(random, {{device, device, device},
                                               {device, device, host},
                                               {device, host, host},
                                               {host, device, host},
                                               {host, host, host},
                                               {device, device, with_nvme_ ? nvme : host},
                                               {device, host, with_nvme_ ? nvme : host},
                                               {host, host, with_nvme_ ? nvme : host}});
      s.parameters = parameters;
      s.gradients = gradients;
      s.optimizer = optimizer;
      return;
    }
    case 14:
      if (s.parallel.ranks() > 1) s.parallel.zero = one_of<int64_t>(random, {0, 1, 2, 3});
      return;
    case 15:
      if (s.parallel.ranks() > 1) change_mesh(answer, random);
      return;
    case 16:
      if (s.parallel.stage_ranks() > 1) s.parallel.overlap = !s.parallel.overlap;
      return;
    case 17:
      return change_head_groups(answer, random);
    default:
      if (s.parallel.has_pipeline()) change_pipeline(s, random);
  }
}

void Mutator::repair(Answering& answer) const {
  const Question& q = examiner_.question();
  Strategy& s = answer.strategy;
  ParallelLayout& p = s.parallel;
  if (q.chunk > 0) s.chunk_tokens = q.chunk;
  if (q.parallel.zero) p.zero = *q.parallel.zero;
  if (q.parallel.overlap) p.overlap = *q.parallel.overlap;
  if (p.has_pipeline()) {
    Pipeline& pipe = p.pipeline;
    if (q.parallel.virtual_stages) pipe.virtual_stages = *q.parallel.virtual_stages;
    if (q.parallel.slices) pipe.slices = *q.parallel.slices;
    if (q.parallel.in_flight) pipe.in_flight = *q.parallel.in_flight;
    if (pipe.slices > 1) {
      s.kv = s.between_uses = s.parameters = s.gradients = Tier::device;
      s.head_groups = 1;
      if (p.zero == 3) p.zero = 2;
      const int64_t slice = answer.tokens / pipe.slices;
      if (slice % s.chunk_tokens != 0) s.chunk_tokens = slice;
      if (slice % s.block_tokens != 0) s.block_tokens = slice;
    }
    // The time of a microbatch is the difference of steps with two and with one. If a step waits
    // for storage at its end, the difference is too small.
    if (s.optimizer == Tier::nvme) s.optimizer = Tier::host;
    // Schedules that split the backward need everything saved.
    const bool splits = pipe.schedule.starts_with("zb") || pipe.schedule.starts_with("v-") ||
                        pipe.schedule.starts_with("interleaved-zb") ||
                        pipe.schedule.starts_with("dualpipe") || pipe.schedule.starts_with("gis");
    for (SavedPolicy* policy : {&s.qkv, &s.attention_out, &s.mlp_input, &s.mlp_inner}) {
      if (splits && policy->where == Saved::recompute) policy->where = Saved::host;
    }
  }
  if (p.ring > 1) s.kv = s.between_uses = Tier::device;
  if (p.tensor > 1 && p.pipeline.slices == 1) s.block_tokens = answer.tokens;
  if (s.chunk_tokens != answer.tokens || p.ring > 1 || p.tensor > 1) s.head_groups = 1;
  if (s.layer_input.where == Saved::recompute) s.layer_input.where = Saved::host;
  if (p.shards() > 1 && p.zero < 3) s.parameters = Tier::device;
  if (s.optimizer == Tier::device &&
      (s.parameters != Tier::device || s.gradients != Tier::device)) {
    s.optimizer = Tier::host;
  }
}

}  // namespace longspan::testing
