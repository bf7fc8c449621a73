// Pairs of questions whose answers must agree, whatever the answers are: what a person takes for
// granted of a search.
//
//   fixed      a plan with a knob fixed is not faster than the free one
//   preset     nor is a preset's than auto's
//   memory     more device, host or nvme memory gives no slower plan
//   gpus       the choice among more devices gives no slower plan
//   objective  the plan of least memory needs no more of it than the fastest
//   false-no   where --objective memory plans, --objective throughput does, and the other way
//   holes      a shorter length than one that is planned is planned, odd ones too
//   longer     more memory gives no shorter longest sequence
//   reach      auto's longest sequence is at least a preset's
//   border     plan takes the length that max-seq prints, and refuses one 5 % beyond
//   within     what max-seq shows as the longest within a time is planned within it, and about as
//              long as what it finds where that time is the limit
//   fewest     what --min-gpus-for names is the fewest: fewer do not plan
//   front      the ends of the front are the fastest and the one of least memory
//   least      nothing plans with less memory than the least that is named, less its gap
//   same       the answer's plan, measured by full simulation, is what the answer says
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
  Question second;  // unused for border, fewest, front, least, same and within: it follows from the
                    // answer

  bool slow = false;  // takes many seconds to answer
};

const std::vector<std::string>& pair_kinds();
bool has_second(const std::string& kind);

enum class Verdict { agree, disagree, nothing_to_compare };

struct Finding {
  Verdict verdict = Verdict::agree;
  std::string what;                // of the two answers, as a clause
  std::vector<std::string> lines;  // of the command line that were asked
  double slowest = 0;              // processor seconds of one question
};

/// Machines and lengths of a size.
enum class Scale {
  small,  // up to 2 devices, 0.6B parameters and 32K tokens
  quick,  // up to 4 devices, 14B parameters and 256K tokens
  whole   // up to 64 devices, 70B and 2M
};

/// The same pair for the same seed. `kind` of pair_kinds().
Pair random_pair(const std::string& kind, uint64_t seed, Scale scale);

/// Asks both and compares. Throws bad_input for an unknown kind, model or machine.
Finding check(const Pair& pair);

/// A list of pairs kept as YAML: `pairs: [{kind: holes, first: plan ..., second: plan ...}]`, with
/// `slow: true` for slow pairs. Throws bad_input for an unreadable file.
std::vector<Pair> read_pairs(const std::filesystem::path& path);
/// One item of such a list.
std::string item_of(const Pair& pair);

}  // namespace longspan::testing
