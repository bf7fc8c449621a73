// Flags that several verbs share, and the values they parse to.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/verbs.h"
#include "hwprofiles/hardware_profile.h"
#include "planner/plan/plan.h"
#include "planner/search/meshes.h"

namespace longspan::cli {

/// --hw and the flags that override its figures. Must outlive the parse and the action.
struct HardwareFlags {
  std::string reference;
  std::string device_memory, host_memory, nvme_capacity;  // empty: as the profile says
  std::string reserve;                                    // of a device; empty: nothing
  std::string set;                                        // "KEY=VALUE,...", figures by name
  bool no_nvme = false;                                   // no capacity
  int64_t gpus = 0;                                       // 0: all

  void add_to(Verb& verb);
  /// Returns the profile with the overrides applied; their source is the command line.
  /// Warns as warn_of_disturbance(). Throws bad_input.
  HardwareProfile load() const;
  /// The same with the memory that --reserve leaves to others, and how much that is.
  HardwareProfile load_whole() const;
  int64_t reserve_bytes() const;
};

/// The mesh sizes that the user fixes.
struct ParallelFlags {
  ParallelChoice choice;
  std::string expert_capacity = "worst", expert_imbalance = "1";
  bool no_overlap = false;

  void add_to(Verb& verb);
  ParallelChoice load() const;
};

/// --deterministic.
void add_deterministic_flag(Verb& verb, bool& value);

/// --forward-only; and the plan of a file, or of its forward alone.
void add_forward_flag(Verb& verb, bool& value);
Plan load_plan(const std::filesystem::path& path, bool forward_only);

/// Returns the lengths in "64K,1M", ascending. Throws bad_input naming `what`, as parse_tokens()
/// does, and for a length that is given twice.
std::vector<int64_t> parse_lengths(const std::string& text, const char* what);

/// Throws as check_writable(), naming `flag`, if a file cannot be written to `path`: an error now
/// instead of after hours of work. An empty path asks for no file.
void check_output(const std::filesystem::path& path, const char* flag);

/// Warns with one line on standard error if other processes disturbed many of the measurements in
/// the profile: plans made with it, and comparisons against it, are then doubtful.
void warn_of_disturbance(const HardwareProfile& hw);

/// Replaces the profile's capacities by sizes as the user typed them; empty texts change nothing,
/// and "0" of the storage means no storage.
void override_capacities(HardwareProfile& hw, const std::string& device_memory,
                         const std::string& host_memory, const std::string& nvme_capacity);

/// Replaces figures by those in "link.h2d_bandwidth=12e9,nvme.capacity_bytes=1TiB": keys as `hw
/// show` prints them, values in its units without prefixes, bytes also as sizes. Throws bad_input.
void set_figures(HardwareProfile& hw, const std::string& settings);

/// YYYY-MM-DD, UTC.
std::string today();

}  // namespace longspan::cli
