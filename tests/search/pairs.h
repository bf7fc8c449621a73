// Pairs of questions whose answers must be consistent with each other, whatever the answers are.
//
//   fixed      a plan with a knob fixed is not faster than one without
//   preset     a preset's plan is not faster than auto's
//   memory     more device, host or nvme memory gives no slower plan
//   gpus       the choice among more devices gives no slower plan
//   objective  the plan of least memory needs no more memory than the fastest plan
//   false-no   --objective memory finds a plan if and only if --objective throughput does
//   holes      if a length has a plan, so has every shorter one, odd ones too
//   longer     more memory gives no shorter longest sequence
//   reach      auto's longest sequence is at least a preset's
//   border     plan accepts the length that max-seq prints, and refuses one 5 % longer
//   within     the longest sequence that max-seq shows for a step time has a plan within that time,
//              and is about as long as the longest with that time as the limit
//   in-time    if a plan with a knob fixed keeps to a step time, one without is found that does
//   fewest     no plan exists on fewer devices than --min-gpus-for names
//   front      the ends of the front are the fastest plan and the plan of least memory
//   least      no plan exists with less memory than the least that is named, minus its gap
//   same       a full simulation of the answer's plan gives the answer's figures
//
// Pure functions of their arguments; see ask() for times.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/search/question.h"

namespace longspan::testing {

struct Pair {
  std::string kind;
  Question first;
  Question second;  // unused for border, fewest, front, least, same and within, which derive it
                    // from the first answer

  bool slow = false;  // takes many seconds to answer
};

const std::vector<std::string>& pair_kinds();
bool has_second(const std::string& kind);

enum class Verdict { agree, disagree, nothing_to_compare };

struct Finding {
  Verdict verdict = Verdict::agree;
  std::string what;                // the relation of the two answers, as a clause
  std::vector<std::string> lines;  // the questions asked, as command lines
  double slowest = 0;              // processor seconds of one question
};

/// The sizes of machines, models and lengths.
enum class Scale {
  small,  // up to 2 devices, 0.6B parameters and 32K tokens
  quick,  // up to 4 devices, 14B parameters and 256K tokens
  whole   // up to 64 devices, 70B parameters and 2M tokens
};

/// Returns a random pair; `kind` is one of pair_kinds(). Deterministic for a seed.
Pair random_pair(const std::string& kind, uint64_t seed, Scale scale);

/// Asks both and compares the answers. Throws bad_input for an unknown kind, model or machine.
Finding check(const Pair& pair);

/// A list of pairs kept as YAML: `pairs: [{kind: holes, first: plan ..., second: plan ...}]`, with
/// `slow: true` for slow pairs. Throws bad_input for an unreadable file.
std::vector<Pair> read_pairs(const std::filesystem::path& path);
/// One item of such a list.
std::string item_of(const Pair& pair);

}  // namespace longspan::testing
