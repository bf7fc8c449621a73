#include "planner/schedule/io/picture_rows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace longspan {
namespace {

using Kind = ActionKind;

// The longest repetition that is looked for, in steps: V-shaped schedules of 4 stages on a rank
// repeat 12.
constexpr size_t kLongestPattern = 24;

struct Shades {
  std::vector<int32_t> of_stage;
  int32_t count = 1;
  std::string_view meaning = "virtual stages of a rank, in order";
  std::string_view later = "later virtual stages of a rank";
};

// A rank's stages in order have shades 0, 1 ... If stages move, depth in the model decides.
Shades shades_of(const Schedule& s) {
  Shades shades;
  shades.of_stage.resize(s.all_stages());
  if (s.moving_stages) {
    const auto ranks = static_cast<int32_t>(s.ranks.size());
    for (int32_t stage = 0; stage < s.all_stages(); ++stage) shades.of_stage[stage] = stage / ranks;
    shades.meaning = "depth in the model";
    shades.later = "deeper in the model";
  } else {
    const std::vector<int32_t> ranks = s.ranks_of_stages();
    std::vector<int32_t> seen(s.ranks.size(), 0);
    for (int32_t stage = 0; stage < s.all_stages(); ++stage) {
      shades.of_stage[stage] = seen[ranks[stage]]++;
    }
    if (s.pipes > 1) {
      shades.meaning = "copies of the model, in order";
      shades.later = "later copies of the model";
    }
  }
  for (const int32_t shade : shades.of_stage) shades.count = std::max(shades.count, shade + 1);
  return shades;
}

bool looks_before(const PicturePass& a, const PicturePass& b) {
  return std::pair(a.kind, a.shade) < std::pair(b.kind, b.shade);
}

bool look_alike(const PictureStep& a, const PictureStep& b) {
  return std::equal(a.passes.begin(), a.passes.end(), b.passes.begin(), b.passes.end(),
                    [](const PicturePass& x, const PicturePass& y) { return x.looks_like(y); });
}

// The number of steps from `begin` that repeat their first `period`, in whole repetitions; 0 if
// they do not.
size_t repeated(const PictureRow& row, size_t begin, size_t end, size_t period) {
  size_t same = begin + period;
  while (same < end && look_alike(row[same], row[same - period])) ++same;
  const size_t steps = (same - begin) / period * period;
  return steps >= 2 * period ? steps : 0;
}

struct Repetition {
  size_t period = 1, steps = 1;
};

// The longest repetition at `begin`; of equally long ones that of the shortest pattern.
Repetition longest_repetition(const PictureRow& row, size_t begin, size_t end) {
  Repetition best;
  for (size_t period = 1; period <= std::min(kLongestPattern, (end - begin) / 2); ++period) {
    const size_t steps = repeated(row, begin, end, period);
    if (steps > best.steps) best = {period, steps};
  }
  return best;
}

void add(PictureBlock& block, const PictureShare& share) {
  const auto found =
      std::find_if(block.shares.begin(), block.shares.end(),
                   [&](const PictureShare& known) { return known.look.looks_like(share.look); });
  if (found == block.shares.end()) {
    block.shares.push_back(share);
  } else {
    found->time += share.time;
    found->passes += share.passes;
  }
}

PictureBlock block_of(const PictureRow& row, size_t begin, Repetition found) {
  PictureBlock block;
  block.start = row[begin].start;
  block.end = block.start;
  block.repeats = static_cast<int64_t>(found.steps / found.period);
  for (size_t i = begin; i < begin + found.steps; ++i) {
    const auto parts = static_cast<double>(row[i].passes.size());
    block.end = std::max(block.end, row[i].end);
    for (const PicturePass& pass : row[i].passes) {
      add(block, {pass, (row[i].end - row[i].start) / parts, 1});
      if (i < begin + found.period) block.pattern.push_back(pass);
    }
  }
  return block;
}

// The passes of every kind, whatever their shades.
std::map<Kind, int64_t> passes_of(const PictureBlock& block) {
  std::map<Kind, int64_t> passes;
  for (const PictureShare& share : block.shares) passes[share.look.kind] += share.passes;
  return passes;
}

bool same_kinds(const PictureBlock& a, const PictureBlock& b) {
  const auto of_a = passes_of(a), of_b = passes_of(b);
  return std::equal(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(),
                    [](const auto& x, const auto& y) { return x.first == y.first; });
}

void join(PictureBlock& block, const PictureBlock& next) {
  for (const PictureShare& share : next.shares) add(block, share);
  block.end = std::max(block.end, next.end);
  block.repeats = 0;
  std::map<Kind, int32_t> lightest;
  for (const auto& [look, time, passes] : block.shares) {
    const auto [found, is_new] = lightest.emplace(look.kind, look.shade);
    if (!is_new) found->second = std::min(found->second, look.shade);
  }
  block.pattern.clear();
  for (const auto& [kind, shade] : lightest) block.pattern.push_back({kind, shade, 0, 0});
}

double length_of(const PictureBlock& block) { return block.end - block.start; }

// The repetitions of a row.
std::vector<PictureBlock> repetitions(const PictureRow& row, double longest_gap) {
  std::vector<PictureBlock> blocks;
  for (size_t begin = 0; begin < row.size();) {
    size_t end = begin + 1;  // of the steps without a long gap between them
    while (end < row.size() && row[end].start - row[end - 1].end <= longest_gap) ++end;
    while (begin < end) {
      Repetition found = longest_repetition(row, begin, end);
      // The last of several F is the first of F B F B, not the one before B F B F.
      if (const size_t next = begin + found.steps;
          found.period == 1 && found.steps > 1 && next < end &&
          longest_repetition(row, next - 1, end).steps >
              longest_repetition(row, next, end).steps + 1) {
        --found.steps;
      }
      blocks.push_back(block_of(row, begin, found));
      begin += found.steps;
    }
  }
  return blocks;
}

// Whether half of all time is in blocks shorter than `length`.
bool are_mostly_short(const std::vector<std::vector<PictureBlock>>& rows, double length) {
  double all = 0, in_short = 0;
  for (const std::vector<PictureBlock>& row : rows) {
    for (const PictureBlock& block : row) {
      all += length_of(block);
      if (length_of(block) < length) in_short += length_of(block);
    }
  }
  return 2 * in_short >= all;
}

struct Joining {
  double longest_gap = 0;
  double longest = 0;  // of a block that is joined
  double least = 0;    // shorter blocks are joined with blocks of other kinds too
};

std::vector<PictureBlock> joined(std::vector<PictureBlock> row, const Joining& by) {
  std::vector<PictureBlock> out;
  bool was_short = false;  // the last of `out` consists of blocks to join
  for (PictureBlock& block : row) {
    const bool is_short = length_of(block) < by.longest;
    if (is_short && was_short && block.start - out.back().end <= by.longest_gap &&
        (same_kinds(out.back(), block) || length_of(out.back()) < by.least ||
         length_of(block) < by.least)) {
      join(out.back(), block);
    } else {
      out.push_back(std::move(block));
      was_short = is_short;
    }
  }
  return out;
}

}  // namespace

std::vector<ActionKind> PictureRows::kinds() const {
  std::vector<ActionKind> kinds;
  for (const PicturePass& look : looks) {
    if (kinds.empty() || kinds.back() != look.kind) kinds.push_back(look.kind);
  }
  return kinds;
}

PictureRows picture_rows(const Schedule& schedule, const LinkedActions& linked,
                         const ScheduleTiming& timing) {
  const Shades shades = shades_of(schedule);
  PictureRows rows;
  rows.steps.resize(schedule.ranks.size());
  rows.copies.resize(schedule.ranks.size());
  rows.shades = shades.count;
  rows.shade_meaning = shades.meaning;
  rows.later_meaning = shades.later;
  for (size_t rank = 0; rank < rows.steps.size(); ++rank) {
    for (int32_t i = linked.first_of_rank[rank]; i < linked.first_of_rank[rank + 1];) {
      PictureStep step{timing.starts[i], timing.ends[i], {}};
      const Kind first = linked.actions[i].kind;
      const bool copies = first == Kind::offload || first == Kind::reload;
      bool is_last = false;
      while (!is_last) {
        const Action& a = linked.actions[i++];
        is_last = !a.with_next;
        if (!copies && !is_compute(a.kind)) continue;
        // S and T are numbered by rank: they belong to no stage.
        const int32_t shade = of_vocabulary(a.kind) ? 0 : shades.of_stage[a.stage];
        step.passes.push_back({a.kind, shade, a.microbatch, a.slice});
      }
      if (step.end <= step.start || step.passes.empty()) continue;
      rows.end = std::max(rows.end, step.end);
      rows.has_copies |= copies;
      for (const PicturePass& pass : step.passes) {
        const auto at = std::lower_bound(rows.looks.begin(), rows.looks.end(), pass, looks_before);
        if (at == rows.looks.end() || !at->looks_like(pass)) rows.looks.insert(at, pass);
      }
      (copies ? rows.copies : rows.steps)[rank].push_back(std::move(step));
    }
  }
  return rows;
}

std::string_view meaning_of(ActionKind kind) {
  switch (kind) {
    case Kind::forward:
      return "forward";
    case Kind::backward:
      return "backward";
    case Kind::backward_input:
      return "gradients of inputs";
    case Kind::backward_weight:
      return "gradients of weights";
    case Kind::recompute:
      return "recomputation";
    case Kind::vocabulary_forward:
      return "output layer";
    case Kind::vocabulary_backward:
      return "gradients of the output layer";
    case Kind::embedding_forward:
      return "embedding";
    case Kind::embedding_backward:
      return "gradients of the embedding";
    case Kind::offload:
      return "copies to the host";
    case Kind::reload:
      return "copies back";
    default:
      return "other";
  }
}

std::string label_of(const PicturePass& pass, int32_t slices) {
  return slices > 1 ? fmt::format("{}.{}", pass.microbatch, pass.slice)
                    : fmt::format("{}", pass.microbatch);
}

std::vector<std::vector<PictureBlock>> blocks_of(const std::vector<PictureRow>& rows,
                                                 double longest_gap, double least) {
  std::vector<std::vector<PictureBlock>> all;
  all.reserve(rows.size());
  for (const PictureRow& row : rows) all.push_back(repetitions(row, longest_gap));
  const double longest =
      are_mostly_short(all, 2 * least) ? std::numeric_limits<double>::infinity() : least;
  for (std::vector<PictureBlock>& row : all) {
    row = joined(std::move(row), {longest_gap, longest, 0});
    row = joined(std::move(row), {longest_gap, longest, least});
    for (PictureBlock& block : row) {
      std::sort(block.shares.begin(), block.shares.end(),
                [](const auto& a, const auto& b) { return looks_before(a.look, b.look); });
    }
  }
  return all;
}

std::string label_of(const PictureBlock& block) {
  std::vector<std::string> words;
  if (block.repeats == 0) {
    for (const auto& [kind, passes] : passes_of(block)) {
      words.push_back(fmt::format("{} {}", passes, word_of(kind)));
    }
    return fmt::format("{}", fmt::join(words, " + "));
  }
  // The shortest pattern of kinds: 28 (F I W) for 7 times F I W on each of 4 stages.
  const auto& all = block.pattern;
  const auto same_kind = [](const PicturePass& a, const PicturePass& b) {
    return a.kind == b.kind;
  };
  size_t period = 1;
  while (all.size() % period != 0 || !std::equal(all.begin() + static_cast<std::ptrdiff_t>(period),
                                                 all.end(), all.begin(), same_kind)) {
    ++period;
  }
  const auto repeats = block.repeats * static_cast<int64_t>(all.size() / period);
  for (size_t begin = 0, end = 0; begin < period; begin = end) {
    while (end < period && all[end].kind == all[begin].kind) ++end;
    const std::string_view word = word_of(all[begin].kind);
    words.push_back(end - begin == 1 ? std::string(word) : fmt::format("{} {}", end - begin, word));
  }
  const std::string pattern = fmt::format("{}", fmt::join(words, " "));
  if (repeats == 1) return pattern;
  return period == 1 ? fmt::format("{} {}", repeats, pattern)
                     : fmt::format("{} ({})", repeats, pattern);
}

}  // namespace longspan
