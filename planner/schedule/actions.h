// What one rank does in a step, at the granularity of (stage, microbatch, sequence slice).
//
// The grammar is the one of PyTorch's pipeline schedules: F forward, I gradient of the input, W
// gradient of the weights, B = I + W, and so on. With one stage the list is trivial; lowering reads
// the list all the same, so that schedules plug in here and nowhere else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace longspan {

enum class ActionKind : uint8_t { forward, backward, optimizer };

struct Action {
  ActionKind kind = ActionKind::forward;
  int32_t stage = 0;
  int32_t micro_batch = 0;
  int32_t slice = 0;
  bool operator==(const Action&) const = default;
};

/// One stage on one rank: F0 B0 F1 B1 ... then the optimizer. REQUIRES: micro_batches >= 1.
std::vector<Action> single_stage_schedule(int64_t micro_batches);

/// "0F0 0B0 0F1 0B1 OPTIMIZER": stage, kind, microbatch.
std::string to_string(const std::vector<Action>& actions);

}  // namespace longspan
