#include "planner/program/rank_links.h"

#include <map>
#include <utility>

namespace longspan {

int64_t messages_per_channel(const Program& p) {
  return p.microbatches * p.lengths.blocks() * p.message_levels;
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
    channel.sender = sends ? own : peer;
    channel.receiver = sends ? peer : own;
    channel.messages.push_back(message);
  }
  for (auto& [number, channel] : channels) links.channels.push_back(std::move(channel));
  return links;
}

}  // namespace longspan
