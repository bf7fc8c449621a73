// Which layers of a model have experts, as configs of Megatron-LM and its kin say it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace longspan {

/// By layer, whether it has experts: every `pattern`th layer if it is a number, the first of each
/// group; else a list of 0 and 1 in Python's form, such as "([0]*3+[1]*58)" or "[0, 1, 1]". The
/// first `dense` layers have none in any case. Throws bad_input for any other text, or a list of
/// another length than `layers`.
std::vector<bool> expert_layers(const std::string& pattern, int64_t layers, int64_t dense = 0);

}  // namespace longspan
