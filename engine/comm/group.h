// Some ranks of the world in a fixed order, and this rank's place among them: whom a collective is
// over. A plain value; every member of a group holds the same ranks and its own index.
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

/// All ranks in their order.
inline Group whole_world(const Communicator& comm) {
  Group group{std::vector<int>(comm.size()), comm.rank()};
  std::iota(group.ranks.begin(), group.ranks.end(), 0);
  return group;
}

}  // namespace longspan
