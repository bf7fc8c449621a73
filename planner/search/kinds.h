// Keys of similar frames, for which results of one predict the others. Internal to planner/search.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <tuple>

#include "planner/evaluate/candidate.h"

namespace longspan {

/// The degrees of a layout of ranks.
using MeshKey = std::array<int64_t, 5>;
/// A layout of ranks with its schedule.
using LayoutKey =
    std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, std::string_view, int64_t, int64_t>;
/// Layout, number of chunks, whether chunks are blocks, and head groups: frames of equal keys
/// overlap their streams alike.
using Kind = std::tuple<LayoutKey, int64_t, bool, int64_t>;

MeshKey mesh_of(const Candidate& c);
LayoutKey layout_of(const Candidate& c);
Kind kind_of(const Candidate& c);

}  // namespace longspan
