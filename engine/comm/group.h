// The ranks that take part in a collective, in a fixed order, and the index of this rank among
// them. A plain value; every member of a group holds the same ranks and its own index.
#pragma once

#include <numeric>
#include <vector>

#include "engine/comm/communicator.h"

namespace longspan {

struct Group {
  std::vector<int> ranks;  // world ranks, each at most once
  int index = 0;           // ranks[index] is this rank

  int size() const { return static_cast<int>(ranks.size()); }
};

/// The group of all ranks, in their order.
inline Group whole_world(const Communicator& comm) {
  Group group{std::vector<int>(comm.size()), comm.rank()};
  std::iota(group.ranks.begin(), group.ranks.end(), 0);
  return group;
}

}  // namespace longspan
