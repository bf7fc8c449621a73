// Schedules in the CSV of PyTorch's torch.distributed.pipelining: a line for each rank, a cell for
// each action, nothing else.
//
// A cell is stage, word and microbatch ("2F0", "1UNSHARD"), several that run as one in parentheses
// ("(0F7;7B3)OVERLAP_F_B"), or empty: the rank idles for a step, which files of computation only
// use to keep ranks aligned. There are two dialects. Today B is the whole backward, I and W its
// halves. In files of 2024 BW is the whole, and B and W the halves; PyTorch now reads their B as
// the whole and drops the microbatch of "2BW0" without a word. A file with BW, or with W and no I,
// is taken for the old dialect. What PyTorch has no word for (slices, recomputation, ...) is
// written in the words of actions.h, slices as in "2.1F0", so that PyTorch refuses such a file:
// it reads a cell as far as it makes sense, and "2F0.1" as 2F0.
//
// Exchanges: PyTorch 2.15 wants a WAIT_SEND_F or WAIT_SEND_B for everything sent, and a
// WAIT_REDUCE_GRAD for every REDUCE_GRAD; versions that know no waits refuse them. Pure functions;
// safe from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "planner/schedule/schedule.h"

namespace longspan {

struct PipelineCsv {
  Schedule schedule;
  /// By rank and action, the empty cells in front of it; one more entry for those behind the last.
  std::vector<std::vector<int32_t>> idle;
  bool old_dialect = false;
  bool carriage_returns = false;  ///< lines end with CR LF, as Python's csv module writes them
  bool ends_with_line_end = true;
};

/// `text` of a file called `name`. Sizes are the largest numbers that occur. Throws bad_input with
/// line and cell for what is no action, and where the dialects are mixed. What it says is not
/// checked further: see first_fault().
PipelineCsv read_pipeline_csv(std::string_view text, std::string_view name);

/// The text that read_pipeline_csv() has read, byte for byte; where an action is written otherwise
/// ("02F0"), as this would write it.
std::string write_pipeline_csv(const PipelineCsv& csv);

/// The schedule in today's dialect. Computation only has empty cells, so that an action is in a
/// later column than all it waits for; a schedule with exchanges has none. Throws bad_input for a
/// schedule of several copies of the model, which a list of stages cannot tell.
PipelineCsv pipeline_csv_of(const Schedule& schedule);

/// `schedule` with SEND and RECV written out between ranks, each behind what it sends, and in front
/// of what needs it at the moment it is sent, so that no order of sending can block; a sent forward
/// is waited for behind its stage's backward, what else is sent at the end. With with_gathering()
/// before it this is PyTorch's own lowering, action for action. Throws bad_input where there are
/// exchanges already, or where ranks wait for each other.
Schedule with_exchanges(const Schedule& schedule);

/// For versions of PyTorch that know no WAIT_SEND_F, WAIT_SEND_B and WAIT_REDUCE_GRAD: without
/// them.
Schedule without_waits(Schedule schedule);

}  // namespace longspan
