#include "planner/program/rank_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace longspan {

namespace {

std::string text_of(const Program& p, const Op& op) {
  const Tensor tensor = p.shapes[op.shape].tensor;
  if (op.serial >= 0) return "parts of attention";
  if (op.from_stage < 0) return fmt::format("{} of the vocabulary", name_of(tensor));
  return fmt::format("{} of stage {}", tensor == Tensor::x ? "residuals" : "gradients",
                     op.from_stage);
}

}  // namespace

int64_t messages_per_channel(const Program& p) {
  // A lot of shared attention has most messages in the backward, with all keys: queries and output
  // gradients with their sums per chunk, keys and values per slice.
  const int64_t of_slice = 6 * p.lengths.chunks();
  const int64_t of_stages = p.microbatches * p.lengths.blocks() * p.message_levels;
  return p.strategy.parallel.pipeline.slices > 1 ? std::max(of_stages, of_slice) : of_stages;
}

int64_t first_shared_channel(const Program& p) {
  return 2 * p.place.meshes * static_cast<int64_t>(p.stages.size());
}

RankLinks links_of(const Program& p) {
  const ParallelLayout& parallel = p.strategy.parallel;
  RankLinks links{parallel, p.place, messages_per_channel(p), {}};
  const auto own = static_cast<int>(p.place.mesh * parallel.stage_ranks() + p.place.rank);
  std::map<int64_t, MessageChannel> channels;
  for (const Op& op : p.ops) {
    if (op.kind != OpKind::send && op.kind != OpKind::receive) continue;
    const int64_t message = message_number(p, op);
    const int64_t number = message / links.channel_messages;
    const int peer = static_cast<int>(message_peer(p, op));
    const bool sends = op.kind == OpKind::send;
    MessageChannel& channel = channels[number];
    channel.number = number;
    if (channel.what.empty()) channel.what = text_of(p, op);
    channel.sender = sends ? own : peer;
    channel.receiver = sends ? peer : own;
    channel.messages.push_back(message);
  }
  for (auto& [number, channel] : channels) links.channels.push_back(std::move(channel));
  return links;
}

}  // namespace longspan
