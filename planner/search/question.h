// A question's options as those of the space that answers it. Internal to planner/search.
#pragma once

#include "planner/search/search.h"
#include "planner/search/space.h"

namespace longspan {

template <class Options>
SpaceOptions space_of(const Options& options) {
  SpaceOptions space;
  space.parallel = options.parallel;
  space.chunk_tokens = options.chunk_tokens;
  space.micro_batches = options.micro_batches;
  space.deterministic = options.deterministic;
  return space;
}

}  // namespace longspan
