// Random questions, and the pairs made of them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "hwprofiles/catalog.h"
#include "models/catalog.h"
#include "tests/search/mutate.h"
#include "tests/search/pairs.h"

namespace longspan::testing {
namespace {

using Words = std::vector<std::string>;

template <class T>
T one_of(Random& random, const std::vector<T>& values) {
  return values[random() % values.size()];
}
double between(Random& random, double low, double high) {
  return std::uniform_real_distribution<>(low, high)(random);
}
std::string gib(double value) { return fmt::format("{:.0f}GiB", std::max(1.0, value)); }

template <class T>
const T& of_scale(Scale scale, const T& small, const T& quick, const T& whole) {
  return scale == Scale::small ? small : scale == Scale::quick ? quick : whole;
}

const Words& models(Scale scale) {
  static const Words small = {"qwen3-0.6b", "qwen3-0.6b", "tiny-llama"};
  static const Words quick = {"llama-3.1-8b", "llama-3.1-8b", "qwen2.5-7b", "qwen3-14b",
                              "qwen3-8b",     "qwen3-0.6b",   "mistral-7b", "llama-2-7b",
                              "llama-2-13b",  "tiny-llama"};
  static const Words whole = {"llama-3.1-8b",  "llama-3.1-8b",  "llama-3.1-8b", "llama-3.1-8b",
                              "llama-3.1-70b", "llama-3.1-70b", "qwen2.5-7b",   "qwen3-14b",
                              "qwen3-32b",     "qwen3-8b",      "qwen3-0.6b",   "mistral-7b",
                              "llama-2-7b",    "llama-2-13b",   "gpt-6.7b",     "llama-2-70b"};
  return of_scale(scale, small, quick, whole);
}

const Words& machines(Scale scale) {
  static const Words small = {"rtx-4090", "2xrtx-4090"};
  static const Words quick = {"h100-80g",        "h100-80g",  "h200-141g",      "a100-80g",
                              "rtx-4090",        "gh200",     "2xh100-94g-nvl", "4xa100-80g",
                              "4xa100-40g-pcie", "4xrtx-4090"};
  static const Words whole = {"h100-80g",     "8xh100-80g",     "8xh100-80g",   "2x8xh100-80g",
                              "8x8xh100-80g", "h200-141g",      "8xh200-141g",  "a100-80g",
                              "4xa100-80g",   "8xa100-80g",     "8xa100-40g",   "4xa100-40g-pcie",
                              "rtx-4090",     "4xrtx-4090",     "8xl40s",       "8xb200",
                              "gh200",        "2xh100-94g-nvl", "4x8xa100-80g", "8xrtx-3090"};
  return of_scale(scale, small, quick, whole);
}

int64_t random_length(Random& random, const std::string& model, Scale scale) {
  int64_t length =
      static_cast<int64_t>(std::exp2(between(random, 12, of_scale(scale, 15, 18, 21))));
  const double kind = between(random, 0, 1);
  if (kind < 0.5) length -= length % 4096;
  if (kind >= 0.5 && kind < 0.75) length -= length % 256;
  if (kind >= 0.9) length |= 1;
  const int64_t most = model.starts_with("gpt") ? 2048 : INT64_MAX;  // learned positions
  return std::clamp<int64_t>(length, 1024, most);
}

Question random_question(Random& random, Scale scale) {
  Question q;
  q.model = one_of(random, models(scale));
  q.hardware = one_of(random, machines(scale));
  if (q.model == "tiny-llama") q.hardware = "cpu-example";
  if (q.model.find("70b") != std::string::npos && load_hardware(q.hardware).devices() < 4) {
    q.hardware = one_of<std::string>(
        random, {"8xh100-80g", "2x8xh100-80g", "8xh200-141g", "8x8xh100-80g", "4x8xa100-80g"});
  }
  q.sequence = random_length(random, q.model, scale);
  return q;
}

void more_limits(Question& q, Random& random) {
  if (random() % 4 == 0) q.max_step_time = one_of<std::string>(random, {"1min", "10min", "1h"});
  if (random() % 6 == 0) q.margin = one_of<std::string>(random, {"2%", "10%"});
}

Question longest_of(Question q, Random& random) {
  q.verb = Question::Verb::max_seq;
  q.sequence = 0;
  q.strategy = random() % 2 == 0 ? "auto" : one_of(random, preset_names());
  more_limits(q, random);
  return q;
}

void more_microbatches(Question& q, Random& random) {
  if (random() % 5 == 0) q.microbatches = one_of<int64_t>(random, {2, 4, 8});
}

// A divisor of the number of devices, at most `most`.
int64_t divisor_of(Random& random, int64_t devices, int64_t most) {
  std::vector<int64_t> all = divisors(devices);
  std::erase_if(all, [&](int64_t d) { return d > most; });
  return one_of(random, all);
}

void fix_one(Question& q, Random& random, int64_t devices) {
  ParallelChoice& p = q.parallel;
  switch (random() % 10) {
    case 0:
      p.overlap = false;
      return;
    case 1:
      p.zero = static_cast<int64_t>(random() % 4);
      return;
    case 2:
      q.deterministic = true;
      return;
    case 3:
      p.ulysses = divisor_of(random, devices, 16);
      return;
    case 4:
      p.ring = divisor_of(random, devices, 16);
      return;
    case 5:
      p.tensor = divisor_of(random, devices, 8);
      return;
    case 6:
      p.data = divisor_of(random, devices, 16);
      return;
    case 7:
      p.pipeline = divisor_of(random, devices, 8);
      return;
    default:
      std::vector<int64_t> chunks;
      for (const int64_t c : {4096, 8192, 12288, 16384, 24576, 32768, 65536}) {
        if (c <= q.sequence && q.sequence % c == 0) chunks.push_back(c);
      }
      if (!chunks.empty()) q.chunk = one_of(random, chunks);
  }
}

// One size of a memory, and a larger one.
void two_memories(Question& less, Question& more, Random& random) {
  std::string Question::*field =
      one_of<std::string Question::*>(random, {&Question::device_memory, &Question::device_memory,
                                               &Question::host_memory, &Question::nvme_capacity});
  const bool cpu = less.hardware == "cpu-example";
  double low = between(random, 16, 120);
  if (field == &Question::host_memory) low = between(random, 64, 3000);
  if (field == &Question::nvme_capacity) {
    if (!(load_hardware(less.hardware).nvme.read_bandwidth.value > 0)) {
      field = &Question::host_memory;
    }
    low = between(random, 1, 8000);
  }
  const double high = std::max(low * between(random, 1.02, 2), low + 1);
  // Memory of a small machine is counted in MiB.
  less.*field = cpu ? fmt::format("{:.0f}MiB", low) : gib(low);
  more.*field = cpu ? fmt::format("{:.0f}MiB", high) : gib(high);
}

}  // namespace

Pair random_pair(const std::string& kind, uint64_t seed, Scale scale) {
  Random random(seed);
  Pair pair{kind, random_question(random, scale), {}};
  Question& first = pair.first;
  Question& second = pair.second;
  const int64_t devices = load_hardware(first.hardware).devices();
  if (kind == "in-time") {
    if (random() % 2 == 0) first.global_batch = devices * one_of<int64_t>(random, {1, 2, 4});
    second = first;
    fix_one(second, random, devices);
  } else if (kind == "fixed" || kind == "preset") {
    more_microbatches(first, random);
    second = first;
    if (kind == "preset") {
      second.strategy = one_of(random, preset_names());
      return pair;
    }
    for (int i = random() % 3 == 0 ? 2 : 1; i > 0; --i) fix_one(second, random, devices);
  } else if (kind == "memory") {
    more_microbatches(first, random);
    second = first;
    two_memories(first, second, random);
  } else if (kind == "gpus") {
    second = first;
    first.gpus = divisor_of(random, devices, std::max<int64_t>(1, devices / 2));
    second.max_gpus = devices;
  } else if (kind == "objective" || kind == "false-no") {
    if (kind == "false-no") {
      const bool cpu = first.hardware == "cpu-example";
      const double size = random() % 3 == 0 ? between(random, 24, 100) : between(random, 3, 24);
      first.device_memory = fmt::format("{:.1f}{}", size, cpu ? "MiB" : "GiB");
      if (cpu) first.device_memory = fmt::format("{:.0f}MiB", size);
      if (random() % 5 < 2) first.host_memory = gib(one_of<double>(random, {32, 64, 128, 256}));
    }
    second = first;
    second.objective = random() % 4 == 0 ? Objective::host_memory : Objective::memory;
  } else if (kind == "holes") {
    if (random() % 2 == 0) first.strategy = one_of(random, preset_names());
    more_limits(first, random);
    second = first;
    second.sequence = std::max<int64_t>(
        512,
        static_cast<int64_t>(static_cast<double>(first.sequence) * between(random, 0.3, 0.99)));
    if (random() % 3 == 0) second.sequence |= 1;
  } else if (kind == "longer") {
    first = longest_of(first, random);
    second = first;
    two_memories(first, second, random);
  } else if (kind == "reach") {
    first = longest_of(first, random);
    first.strategy = one_of(random, preset_names());
    second = first;
    second.strategy = "auto";
  } else if (kind == "border" || kind == "within") {
    first = longest_of(first, random);
    if (kind == "within") first.max_step_time.clear();
  } else if (kind == "fewest") {
    first.fewest = true;
  } else if (kind == "least") {
    first.objective = random() % 2 == 0 ? Objective::host_memory : Objective::memory;
  }
  return pair;
}

}  // namespace longspan::testing
