// Schedules in the CSV format of PyTorch's torch.distributed.pipelining: a line per rank, a cell
// per action.
//
// A cell is stage, word and microbatch ("2F0", "1UNSHARD"), or several that run as one in
// parentheses ("(0F7;7B3)OVERLAP_F_B"), or empty: the rank idles for a step, used only in
// computation-only files to keep ranks aligned. There are two dialects. Today B is the whole
// backward, I and W its halves. In files of 2024 BW is the whole, and B and W the halves; today's
// PyTorch reads their B as the whole and silently drops the microbatch of "2BW0". A file with BW,
// or with W and no I, is read in the old dialect. Extensions (slices, recomputation, ...) use the
// words of actions.h. A slice is written "2.1F0" so that PyTorch refuses such a file: it would read
// "2F0.1" as 2F0, because it ignores the rest of a cell.
//
// Exchanges: PyTorch 2.15 requires a WAIT_SEND_F or WAIT_SEND_B for everything sent, and a
// WAIT_REDUCE_GRAD for every REDUCE_GRAD; versions without waits refuse them. Pure functions; safe
// from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "planner/schedule/schedule.h"

namespace longspan {

struct PipelineCsv {
  Schedule schedule;
  /// By rank and action: the number of empty cells before it; one more entry for those after the
  /// last.
  std::vector<std::vector<int32_t>> idle;
  bool old_dialect = false;
  bool carriage_returns = false;  ///< lines end with CR LF, as from Python's csv module
  bool ends_with_line_end = true;
};

/// Parses `text` of a file called `name`. Sizes are the largest numbers that occur. Throws
/// bad_input with line and cell for an invalid action, and if dialects are mixed. It does not
/// validate the schedule: see first_fault(). `expected`: examples of actions, for the message.
PipelineCsv read_pipeline_csv(
    std::string_view text, std::string_view name,
    std::string_view expected = "one like 2F0, 1UNSHARD or (0F7;7B3)OVERLAP_F_B");

/// The text that read_pipeline_csv() read, byte for byte, except that actions are in canonical form
/// ("2F0" for "02F0").
std::string write_pipeline_csv(const PipelineCsv& csv);

/// The schedule in today's dialect. Computation-only schedules get empty cells, so that an action
/// is in a later column than its dependencies; a schedule with exchanges has none. Throws bad_input
/// for a schedule of several copies of the model, which the format cannot express.
PipelineCsv pipeline_csv_of(const Schedule& schedule);

/// Adds SEND and RECV between ranks: SEND directly follows the action, and RECV is posted at the
/// moment of sending, before the action that needs it, so that no order of sending can block. The
/// WAIT of a sent forward follows its stage's backward, other WAITs are at the end. After
/// with_gathering() this equals PyTorch's own lowering, action for action. Throws bad_input if
/// there are exchanges already, or for deadlocks.
Schedule with_exchanges(const Schedule& schedule);

/// Removes WAIT_SEND_F, WAIT_SEND_B and WAIT_REDUCE_GRAD, for versions of PyTorch without them.
Schedule without_waits(Schedule schedule);

}  // namespace longspan
