// The links of a rank to the others, from which transports make their connections before the first
// step: its groups, and the channels of its messages to and from other stages of a pipeline.
//
// A channel has the messages of one kind: the residuals, or their gradients, that one stage sends;
// all of shared attention, or one tensor of a cut vocabulary, from one rank to another. It has one
// sender and one receiver. A plain value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/program/program.h"

namespace longspan {

struct MessageChannel {
  int64_t number = 0;             // message m of a step is in channel m / channel_messages
  int sender = 0, receiver = 0;   // ranks of the world
  std::vector<int64_t> messages;  // in the order in which this rank sends or receives them
  std::string what = {};          // "residuals of stage 1"
};

struct RankLinks {
  ParallelLayout parallel;  // of a mesh
  Place place;
  int64_t channel_messages = 1;
  std::vector<MessageChannel> channels;  // in the order of their numbers

  /// The links of a rank without a pipeline.
  static RankLinks in_mesh(const ParallelLayout& parallel, int64_t rank) {
    return {parallel, place_of(parallel, rank), 1, {}};
  }
};

/// The count of numbers for the messages of a channel, which are consecutive. A channel of shared
/// attention uses them in turns: they are enough for all that is under way at a time.
int64_t messages_per_channel(const Program& program);
/// The number of the first channel of shared attention: those of stages are before.
int64_t first_shared_channel(const Program& program);

/// The links of the rank of `program`.
RankLinks links_of(const Program& program);

}  // namespace longspan
