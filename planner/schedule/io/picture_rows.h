// The content of a picture of a schedule, independent of how it is drawn: the steps of every rank,
// and the blocks that replace them where steps are too narrow to be told apart.
//
// Plain values; pure functions, safe from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "planner/schedule/timing.h"

namespace longspan {

/// A pass is drawn in the colour of its kind, in a shade that tells the stages of a rank apart.
struct PicturePass {
  ActionKind kind = ActionKind::forward;
  int32_t shade = 0;
  int32_t microbatch = 0;
  int32_t slice = 0;

  bool looks_like(const PicturePass& other) const {
    return kind == other.kind && shade == other.shade;
  }
};

/// One pass, or the passes that run as one.
struct PictureStep {
  double start = 0, end = 0;
  std::vector<PicturePass> passes;
};

/// The steps of a rank in the order of its list, without those that take no time.
using PictureRow = std::vector<PictureStep>;

struct PictureRows {
  std::vector<PictureRow> steps;   ///< by rank
  std::vector<PictureRow> copies;  ///< by rank: OFFLOAD and RELOAD, at the times of their channel
  std::vector<PicturePass> looks;  ///< each kind and shade that occurs, once, in order
  int32_t shades = 1;              ///< from the first stage of a rank to its last
  std::string_view shade_meaning;  ///< what shades 0, 1 ... are
  std::string_view later_meaning;  ///< what all shades but 0 are
  bool has_copies = false;
  double end = 0;  ///< of the last step or copy

  std::vector<ActionKind> kinds() const;  ///< those that occur, in order
};

PictureRows picture_rows(const Schedule& schedule, const LinkedActions& linked,
                         const ScheduleTiming& timing);

/// "forward", "gradients of inputs" ...
std::string_view meaning_of(ActionKind kind);

/// "3", or "3.1" with slices: microbatch and slice.
std::string label_of(const PicturePass& pass, int32_t slices);

/// The passes of one kind and shade in a block.
struct PictureShare {
  PicturePass look;
  double time = 0;
  int64_t passes = 0;
};

/// A repetition in a rank's list, such as 12 F, or 57 times F and B; or several short ones.
struct PictureBlock {
  double start = 0, end = 0;
  int64_t repeats = 0;  ///< of the pattern; 0 for several repetitions
  /// The look of each pass; for several repetitions each kind in the lightest shade it has.
  std::vector<PicturePass> pattern;
  /// By kind and shade. Their times add up to the block's, less its idle time.
  std::vector<PictureShare> shares;
};

/// Divides each row into blocks. Steps further apart than `longest_gap` are never in one block.
/// Neighbours of the same kinds are joined if they are shorter than `least`, or all of them if half
/// of all time is in blocks shorter than twice that; what is still shorter than `least` is joined
/// with any such neighbour.
std::vector<std::vector<PictureBlock>> blocks_of(const std::vector<PictureRow>& rows,
                                                 double longest_gap, double least);

/// "12 F", "57 (F B)", "8 (3 F 2 B)"; of several repetitions "120 F + 96 B".
std::string label_of(const PictureBlock& block);

}  // namespace longspan
