#include "planner/schedule/registry.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/nearest.h"
#include "base/units.h"
#include "planner/schedule/families/families.h"
#include "planner/schedule/solver/solved_families.h"

namespace longspan {
namespace {

constexpr auto kFamilies = std::to_array<ScheduleFamily>({
    {.name = "gpipe",
     .summary = "all forwards, then all backwards",
     .source = "GPipe, arXiv 1811.06965",
     .dominated = true,
     .generate = gpipe},
    {.name = "1f1b",
     .summary = "a forward and a backward in turns: as many microbatches in flight as ranks",
     .source = "PipeDream-Flush, arXiv 2006.09503",
     .generate = one_forward_one_backward},
    {.name = "interleaved-1f1b",
     .summary = "1f1b over several chunks of layers on each rank",
     .source = "Megatron-LM, arXiv 2104.04473",
     .least_virtual_stages = 2,
     .most_virtual_stages = 0,
     .grouped = true,
     .generate = interleaved_1f1b},
    {.name = "bfs",
     .summary = "all microbatches through a chunk of layers before the next chunk",
     .source = "Breadth-First Pipeline Parallelism, arXiv 2211.05953; PyTorch's LoopedBFS",
     .most_virtual_stages = 0,
     .generate = breadth_first},
    {.name = "kfkb",
     .summary = "1f1b of groups of microbatches, to hide messages",
     .source = "Ada-Grouper, arXiv 2303.01675",
     .grouped = true,
     .dominated = true,
     .generate = kfkb},
    {.name = "zb-h1",
     .summary = "1f1b with gradients of weights moved into bubbles, in 1f1b's memory",
     .source = "Zero Bubble Pipeline Parallelism, arXiv 2401.10241",
     .splits_backward = true,
     .generate = zb_h1},
    {.name = "zb-h2",
     .summary = "no bubble where F = I = W, in twice 1f1b's memory",
     .source = "Zero Bubble Pipeline Parallelism, arXiv 2401.10241",
     .splits_backward = true,
     .generate = zb_h2},
    {.name = "interleaved-zb",
     .summary = "zb-h1 over several chunks of layers on each rank",
     .source = "PyTorch's InterleavedZeroBubble",
     .least_virtual_stages = 2,
     .most_virtual_stages = 0,
     .splits_backward = true,
     .generate = interleaved_zero_bubble},
    {.name = "zb-auto",
     .summary =
         "fills bubbles with gradients of weights, by the given times, within a memory limit",
     .source = "Zero Bubble Pipeline Parallelism, arXiv 2401.10241, and its authors' scheduler",
     .takes_memory_limit = true,
     .splits_backward = true,
     .generate = zb_auto},
    {.name = "zb-v",
     .summary = "stages in a V: no bubble where F = I = W, in 1f1b's memory on every rank",
     .source = "Zero Bubble Pipeline Parallelism, arXiv 2401.10241, and its authors' scheduler",
     .least_virtual_stages = 2,
     .most_virtual_stages = 2,
     .takes_memory_limit = true,
     .splits_backward = true,
     .generate = zb_v},
    {.name = "zb-v-static",
     .summary = "zb-v in a fixed order, independent of the times",
     .source = "PyTorch's ZBVZeroBubble",
     .least_virtual_stages = 2,
     .most_virtual_stages = 2,
     .splits_backward = true,
     .generate = zb_v_static},
    {.name = "v-half",
     .summary = "stages in a V, half of 1f1b's memory",
     .source = "Pipeline Parallelism with Controllable Memory, arXiv 2405.15362",
     .least_virtual_stages = 2,
     .most_virtual_stages = 2,
     .splits_backward = true,
     .generate = v_half},
    {.name = "v-min",
     .summary = "stages in a V, a third of 1f1b's memory",
     .source = "Pipeline Parallelism with Controllable Memory, arXiv 2405.15362",
     .least_virtual_stages = 2,
     .most_virtual_stages = 2,
     .splits_backward = true,
     .generate = v_min},
    {.name = "v-adaptive",
     .summary = "stages in a V: the fastest between v-min and zb-v that fits a memory limit",
     .source = "Pipeline Parallelism with Controllable Memory, arXiv 2405.15362, section 4",
     .least_virtual_stages = 2,
     .most_virtual_stages = 2,
     .takes_memory_limit = true,
     .splits_backward = true,
     .generate = v_adaptive},
    {.name = "dualpipe",
     .summary = "two copies of the model fed from both ends, forwards and backwards in pairs",
     .source = "DeepSeek-V3, arXiv 2412.19437; DualPipe's README",
     .splits_backward = true,
     .plannable = false,
     .generate = dual_pipe},
    {.name = "dualpipe-v",
     .summary = "dualpipe folded to a V: one copy, forwards and backwards in pairs",
     .source = "DualPipe's README; PyTorch's DualPipeV",
     .least_virtual_stages = 2,
     .most_virtual_stages = 2,
     .splits_backward = true,
     .generate = dual_pipe_v},
    {.name = "terapipe",
     .summary = "all forwards of slices of sequences, then all backwards",
     .source = "TeraPipe, arXiv 2102.07988",
     .sliced = true,
     .uneven_slices = true,
     .dominated = true,
     .generate = terapipe},
    {.name = "seq1f1b",
     .summary = "1f1b of slices of sequences: smaller bubbles and less memory",
     .source = "Seq1F1B, arXiv 2406.03488",
     .sliced = true,
     .uneven_slices = true,
     .generate = seq1f1b},
    {.name = "seq1f1b-i",
     .summary = "seq1f1b over several chunks of layers on each rank",
     .source = "Seq1F1B, arXiv 2406.03488",
     .least_virtual_stages = 2,
     .most_virtual_stages = 0,
     .sliced = true,
     .uneven_slices = true,
     .generate = seq1f1b_interleaved},
    {.name = "chunkflow",
     .summary =
         "seq1f1b that keeps the last slices of a sequence (group) and computes others twice",
     .source = "ChunkFlow, arXiv 2503.02356",
     .sliced = true,
     .grouped = true,
     .recomputes = true,
     .dominated = true,
     .generate = chunk_flow},
    {.name = "sppo",
     .summary = "seq1f1b; each slice offloads as much as the next slice's forward can hide",
     .source = "SPPO, arXiv 2503.10377",
     .sliced = true,
     .uneven_slices = true,
     .offloads = true,
     .dominated = true,
     .generate = sppo},
    {.name = "sppo-msp",
     .summary = "sppo; the first and last slices are split over ranks that would be idle",
     .source = "SPPO, arXiv 2503.10377, multiplexed sequence partition",
     .sliced = true,
     .offloads = true,
     .plannable = false,
     .generate = multiplexed_sppo},
    {.name = "slimpipe",
     .summary = "seq1f1b-i of as many slices as ranks or more: memory falls with every rank",
     .source = "SlimPipe, arXiv 2504.14519",
     .most_virtual_stages = 0,
     .sliced = true,
     .exchanges_attention = true,
     .generate = slimpipe},
    {.name = "gis",
     .summary = "interleaved-1f1b with the backward split; memory is p chunks of layers less",
     .source = "PipeOffload, arXiv 2503.01328",
     .least_virtual_stages = 2,
     .most_virtual_stages = 0,
     .grouped = true,
     .splits_backward = true,
     .generate = grouped_interleaved},
    {.name = "gis-h",
     .summary = "gis in groups of half the ranks: about half of 1f1b's memory",
     .source = "PipeOffload, arXiv 2503.01328",
     .least_virtual_stages = 2,
     .most_virtual_stages = 0,
     .splits_backward = true,
     .generate = half_grouped_interleaved},
    {.name = "po-h",
     .summary =
         "chunks evenly interleaved, half of them offloaded: a quarter of 1f1b's memory and less",
     .source = "PipeOffload, arXiv 2503.01328",
     .least_virtual_stages = 2,
     .most_virtual_stages = 0,
     .offloads = true,
     .splits_backward = true,
     .dominated = true,
     .generate = half_offloaded},
    {.name = "po-f",
     .summary = "po-h with all chunks offloaded: memory of a few of them",
     .source = "PipeOffload, arXiv 2503.01328",
     .least_virtual_stages = 2,
     .most_virtual_stages = 0,
     .offloads = true,
     .splits_backward = true,
     .dominated = true,
     .generate = fully_offloaded},
    {.name = "chronos",
     .summary = "chunks evenly interleaved: three quarters of 1f1b's memory with two on each rank",
     .source = "ChronosPipe, arXiv 2503.03182",
     .least_virtual_stages = 2,
     .most_virtual_stages = 0,
     .generate = chronos},
    {.name = "chronos-recomp",
     .summary = "chronos with the shallow half of the chunks recomputed",
     .source = "ChronosPipe, arXiv 2503.03182, Chronos-Recomp",
     .least_virtual_stages = 2,
     .most_virtual_stages = 0,
     .recomputes = true,
     .dominated = true,
     .generate = chronos_recomputed},
    {.name = "stp",
     .summary = "stages in a V; paired computations hide the communication of tensor parallelism",
     .source = "Synergistic Tensor and Pipeline Parallelism, arXiv 2510.27257",
     .least_virtual_stages = 2,
     .most_virtual_stages = 2,
     .splits_backward = true,
     .plannable = false,
     .generate = braided},
    {.name = "helixpipe",
     .summary =
         "attention runs on any free rank; filling the pipeline waits only for the other parts",
     .source = "HelixPipe, arXiv 2507.00394, and its authors' repository",
     .most_virtual_stages = 0,
     .grouped = true,
     .attention_apart = true,
     .plannable = false,
     .generate = helix},
    {.name = "1f1b-vocab-1",
     .summary = "1f1b with the output layer cut over all ranks, p+2 microbatches in flight",
     .source = "Vocabulary Parallelism, arXiv 2411.05288, algorithm 1",
     .cuts_vocabulary = true,
     .gradient_in_t = true,
     .generate = vocabulary_1},
    {.name = "1f1b-vocab-2",
     .summary = "1f1b-vocab-1 with the output's gradient computed in S, p+1 microbatches in flight",
     .source = "Vocabulary Parallelism, arXiv 2411.05288, algorithm 2",
     .cuts_vocabulary = true,
     .generate = vocabulary_2},
    {.name = "v-half-vocab-1",
     .summary = "v-half with the output layer cut over all ranks, two microbatches more in flight",
     .source = "Vocabulary Parallelism, arXiv 2411.05288, algorithm 1",
     .least_virtual_stages = 2,
     .most_virtual_stages = 2,
     .cuts_vocabulary = true,
     .gradient_in_t = true,
     .splits_backward = true,
     .generate = v_half_vocabulary_1},
    {.name = "v-half-vocab-2",
     .summary =
         "v-half-vocab-1 with the output's gradient computed in S, one microbatch more in flight",
     .source = "Vocabulary Parallelism, arXiv 2411.05288, algorithm 2",
     .least_virtual_stages = 2,
     .most_virtual_stages = 2,
     .cuts_vocabulary = true,
     .splits_backward = true,
     .generate = v_half_vocabulary_2},
});

// Longer lists take many seconds to generate and simulate.
constexpr double kMostForwards = 1 << 21;

// The counted noun, singular and plural.
struct Counted {
  std::string_view one, several;
};

void check_count(std::string_view name, const Counted& what, int32_t count, int32_t least,
                 int32_t most) {
  if (count >= least && (most == 0 || count <= most)) return;
  const bool exactly = least == most && most > 0;
  throw bad_input("{} takes {}{} {}; got {}", name, least, exactly ? "" : " or more",
                  exactly && least == 1 ? what.one : what.several, count);
}

}  // namespace

std::span<const ScheduleFamily> schedule_families() { return kFamilies; }

const ScheduleFamily* find_schedule_family(std::string_view name) {
  const auto found = std::find_if(kFamilies.begin(), kFamilies.end(),
                                  [&](const ScheduleFamily& f) { return f.name == name; });
  return found == kFamilies.end() ? nullptr : &*found;
}

const ScheduleFamily& schedule_family(std::string_view name) {
  if (const ScheduleFamily* found = find_schedule_family(name)) return *found;
  if (solved_family(name) != nullptr) {
    throw bad_input(
        "{0} is made by a solver, not a schedule of families: see longspan schedule {0} --help",
        name);
  }
  std::vector<std::string> names;
  for (const ScheduleFamily& family : kFamilies) names.emplace_back(family.name);
  const std::string hint = nearest_hint(std::string(name), names);
  throw bad_input("unknown schedule \"{}\"{}", name,
                  hint.empty() ? "; `longspan schedule list` shows all" : hint);
}

bool takes_virtual_stages(const ScheduleFamily& family, int64_t count) {
  const int64_t most = family.most_virtual_stages;
  return count >= family.least_virtual_stages && (most == 0 || count <= most);
}

Schedule make_schedule(const ScheduleFamily& family, const ScheduleRequest& request) {
  check_count(family.name, {"rank", "ranks"}, request.ranks, 1, 0);
  check_count(family.name, {"microbatch", "microbatches"}, request.microbatches, 1, 0);
  check_count(family.name, {"virtual stage", "virtual stages"}, request.virtual_stages,
              family.least_virtual_stages, family.most_virtual_stages);
  check_count(family.name, {"slice", "slices"}, request.slices, 1, family.sliced ? 0 : 1);
  check_count(family.name, {"microbatch in a group", "microbatches in a group"}, request.group, 0,
              0);
  if (request.group != 0 && !family.grouped) {
    throw bad_input("{} has no groups of microbatches; leave the group out", family.name);
  }
  if (request.memory_limit < 0 || request.in_flight < 0) {
    throw bad_input("a limit of memory or of microbatches in flight cannot be negative");
  }
  if (request.in_flight > 0 && !family.takes_memory_limit) {
    throw bad_input("{} holds as many microbatches as its list says; leave the limit out",
                    family.name);
  }
  const double forwards = static_cast<double>(request.ranks) * request.virtual_stages *
                          request.microbatches * request.slices;
  if (forwards > kMostForwards) {
    throw bad_input("{} of {} forwards is too long; try fewer microbatches or ranks", family.name,
                    grouped(static_cast<int64_t>(forwards)));
  }
  return family.generate(request);
}

}  // namespace longspan
