// longspan assign: sequences of mixed lengths to groups of ranks.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "base/error.h"
#include "base/units.h"
#include "cli/documents.h"
#include "cli/solving.h"
#include "cli/table.h"
#include "cli/text.h"
#include "cli/verbs.h"
#include "planner/schedule/solver/sequence_groups.h"

namespace longspan::cli {
namespace {

struct AssignFlags {
  std::string lengths, groups;
  int ranks = 0;
  SequenceCosts costs;
  AssignOptions options;
};

std::vector<std::string> parts_of(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

template <class Number>
Number number_of(const std::string& text, const char* what, const char* expected) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw bad_input("{}: \"{}\" is not {}", what, text, expected);
  }
  return number;
}

// Parses "64K,4K*12": lengths, each with an optional count.
std::vector<int64_t> lengths_of(const std::string& text) {
  std::vector<int64_t> lengths;
  for (const std::string& part : parts_of(text, ',')) {
    const size_t star = part.find('*');
    const int64_t length = parse_tokens(part.substr(0, star), "lengths");
    int64_t count = 1;
    if (star != std::string::npos) {
      count = number_of<int64_t>(part.substr(star + 1), "lengths", "a number of sequences");
      if (count < 1 || count > 1 << 20) {
        throw bad_input("lengths: \"{}\" is not a number of sequences", part);
      }
    }
    lengths.insert(lengths.end(), count, length);
  }
  return lengths;
}

// Parses "1,2:0.01,4:0.02": group sizes, each with the exchange time per token.
std::vector<GroupSize> sizes_of(const std::string& text, int ranks) {
  std::vector<GroupSize> sizes;
  if (text.empty()) {
    for (int32_t size = 1; size <= ranks; size *= 2) sizes.push_back({size, 0});
    return sizes;
  }
  for (const std::string& part : parts_of(text, ',')) {
    const size_t colon = part.find(':');
    GroupSize size;
    size.ranks = number_of<int32_t>(part.substr(0, colon), "--groups", "a number of ranks");
    if (colon != std::string::npos) {
      size.exchange = number_of<double>(part.substr(colon + 1), "--groups", "a time per token");
    }
    sizes.push_back(size);
  }
  return sizes;
}

const char* word_of(Stop stop) {
  switch (stop) {
    case Stop::nodes:
      return "node limit";
    case Stop::seconds:
      return "time limit";
    case Stop::infeasible:
      return "lengths rounded up do not fit";
    default:
      return "optimal";
  }
}

// "64K 4K*3"
std::string text_of(std::vector<int64_t> sequences) {
  std::sort(sequences.rbegin(), sequences.rend());
  std::string text;
  for (size_t i = 0, next; i < sequences.size(); i = next) {
    for (next = i; next < sequences.size() && sequences[next] == sequences[i];) ++next;
    if (i > 0) text += ' ';
    text += format_tokens(sequences[i]);
    if (next > i + 1) text += fmt::format("*{}", next - i);
  }
  return text;
}

int run(AssignFlags flags, bool json) {
  if (flags.ranks < 1) throw bad_input("an assignment has --ranks, 1 or more");
  if (flags.costs.linear == 0 && flags.costs.quadratic == 0) {
    throw bad_input("--linear and --quadratic: both are 0, so no sequence would take time");
  }
  flags.costs.sizes = sizes_of(flags.groups, flags.ranks);
  const std::vector<int64_t> lengths = lengths_of(flags.lengths);
  const SequenceAssignment made = with_progress(flags.options.limits.seconds, [&] {
    return assign_sequences(lengths, flags.ranks, flags.costs, flags.options);
  });
  if (json) {
    Json batches = Json::array();
    for (const Microbatch& batch : made.microbatches) {
      Json groups = Json::array();
      for (const SequenceGroup& group : batch.groups) {
        groups.push_back(
            {{"ranks", group.ranks}, {"sequences_tokens", group.sequences}, {"time", group.time}});
      }
      batches.push_back({{"time", batch.time},
                         {"bound", batch.bound},
                         {"stopped_by", word_of(batch.stop)},
                         {"groups", std::move(groups)}});
    }
    print_json({{"time", made.time},
                {"nodes", made.nodes},
                {"microbatches", std::move(batches)},
                {"source", "FlexSP, arXiv 2412.01523"}});
    return 0;
  }
  say("{}\n",
      bold(fmt::format(
          "{} on {}: time {:.6g} in {}",
          counted(static_cast<int64_t>(lengths.size()), "sequence", "sequences"),
          counted(flags.ranks, "rank", "ranks"), made.time,
          counted(static_cast<int64_t>(made.microbatches.size()), "microbatch", "microbatches"))));
  Table table({{"microbatch"}, {"ranks"}, {"time"}, {"sequences", false}, {"solver", false}});
  for (size_t i = 0; i < made.microbatches.size(); ++i) {
    const Microbatch& batch = made.microbatches[i];
    for (const SequenceGroup& group : batch.groups) {
      const bool first = &group == batch.groups.data();
      table.add({first ? fmt::format("{}", i) : "", fmt::format("{}", group.ranks),
                 fmt::format("{:.6g}", group.time), text_of(group.sequences),
                 first ? word_of(batch.stop) : ""});
    }
  }
  table.print();
  return 0;
}

}  // namespace

void add_assign(Verb& program) {
  auto flags = std::make_shared<AssignFlags>();
  flags->options.limits = {.nodes = 2000, .seconds = 10};
  Verb verb =
      program.add_verb("assign", "Sequences of mixed lengths to sequence-parallel groups of ranks",
                       "longspan assign 64K,16K*4,2K*40 --ranks 8 --groups 1,2:0.01,4:0.02,8:0.03 "
                       "--quadratic 1e-5 --memory-limit 16384");
  verb.add_option("lengths", flags->lengths, "Lengths, as 64K,4K*12").required();
  verb.add_option("--ranks", flags->ranks, "Ranks of all groups").within(0, 4096);
  verb.add_option("--groups", flags->groups,
                  "Sizes of groups, each with the time its exchanges take per token: 1,2:0.01")
      .shown_default("powers of two, exchanges 0");
  verb.add_option("--quadratic", flags->costs.quadratic, "Time per token squared, of one rank")
      .not_negative();
  verb.add_option("--linear", flags->costs.linear, "Time per token, of one rank").not_negative();
  verb.add_option("--fixed", flags->costs.fixed, "Time of a group besides").not_negative();
  verb.add_option("--token-memory", flags->costs.memory_per_token, "Memory per token")
      .not_negative();
  verb.add_option("--memory-limit", flags->costs.memory_limit, "Memory of a rank; 0: no limit")
      .not_negative()
      .shown_default("none");
  verb.add_option("--microbatches", flags->options.microbatches, "Microbatches")
      .within(0, 1 << 20)
      .shown_default("the fewest that fit and up to 3 more, whichever is fastest");
  verb.add_option("--buckets", flags->options.buckets, "Buckets of lengths in a microbatch")
      .within(1, 1 << 12);
  verb.add_option("--node-limit", flags->options.limits.nodes,
                  "Most nodes of the solver's search, of a microbatch")
      .within(0, 1 << 30);
  verb.add_option("--time-limit", flags->options.limits.seconds,
                  "Most seconds of the solver, of a microbatch")
      .not_negative();
  verb.runs([flags](bool json) { return run(*flags, json); });
}

}  // namespace longspan::cli
