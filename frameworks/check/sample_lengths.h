// The lengths of a data set's samples, and what a run that pads its batches makes of them.
//
// Pure functions and plain values; safe from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "frameworks/knobs/configured_run.h"

namespace longspan {

class SampleLengths {
 public:
  /// `counts`: how many samples have each length. REQUIRES: lengths and counts are positive, and
  /// there is at least one.
  explicit SampleLengths(std::map<int64_t, int64_t> counts) : counts_(std::move(counts)) {}
  /// Samples of which only the mean is known: nothing is known of the longest.
  static SampleLengths of_mean(int64_t tokens);

  bool has_only_mean() const { return only_mean_; }
  const std::map<int64_t, int64_t>& counts() const { return counts_; }
  int64_t longest() const { return counts_.rbegin()->first; }
  double mean() const;
  double share_above(int64_t tokens) const;
  /// The expected length of the longest of `samples` samples.
  double longest_of(double samples) const;
  /// Longer samples are cut off.
  SampleLengths cut_at(int64_t tokens) const;

 private:
  double total() const;

  std::map<int64_t, int64_t> counts_;
  bool only_mean_ = false;
};

/// The lengths in "mean=2000" or "512:1000,1024:500" (lengths and counts). Throws bad_input naming
/// `what`.
SampleLengths parse_sample_lengths(const std::string& text, const std::string& what);

/// Whether a text is one for parse_sample_lengths(), right or wrong, and not the name of a file.
bool are_sample_lengths(const std::string& text);

/// The lengths in the text of a file: a length or "LENGTH COUNT" in each line; a JSON list of
/// lengths; or a length, a list, or an object with "length" in each line (JSONL). Throws bad_input
/// with `origin` and the line.
SampleLengths read_sample_lengths(const std::string& text, const std::string& origin);

/// Tokens to which a run pads.
struct PaddedLengths {
  int64_t longest = 0;     // the longest sample
  int64_t microbatch = 0;  // the longest of a microbatch, as expected; without padding, the mean
  /// For which a step's ranks wait, as expected: that of all ranks if they exchange in every
  /// microbatch. If only after the last, what a rank has more than others evens out.
  int64_t step = 0;
  double mean = 0;       // of samples, which are cut off at the run's sequence
  double computed = 0;   // for which a sample is computed: the longest of its microbatch
  double cut_share = 0;  // of samples that are cut off; 0 if only the mean is known
};

/// REQUIRES: the run's microbatch is known.
PaddedLengths padded_lengths(const TrainingRun& run, const SampleLengths& lengths);

/// The run with its sequences padded to `tokens`, rounded up to what its ranks divide, and at most
/// to what it has.
ConfiguredRun padded_to(ConfiguredRun configured, int64_t tokens);

/// The run with its sequences full of packed documents of about `tokens` tokens that attend only to
/// themselves: each is a sequence of its own.
ConfiguredRun packed_with(ConfiguredRun configured, int64_t tokens);

}  // namespace longspan
