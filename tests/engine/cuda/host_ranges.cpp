// Named ranges that tests read back, in the place of NVTX's.
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/cuda/ranges.h"
#include "tests/engine/cuda/host_runtime.h"

namespace longspan::cuda {
namespace {

struct Ranges {
  std::mutex mutex;
  std::vector<std::string> names;
  int open = 0;
};
Ranges& ranges() {
  static Ranges all;
  return all;
}

}  // namespace

NamedRange::NamedRange(std::string_view name) {
  const std::lock_guard lock(ranges().mutex);
  ranges().names.emplace_back(name);
  ++ranges().open;
}
NamedRange::~NamedRange() {
  const std::lock_guard lock(ranges().mutex);
  --ranges().open;
}

}  // namespace longspan::cuda

std::vector<std::string> longspan::testing::take_ranges() {
  const std::lock_guard lock(cuda::ranges().mutex);
  if (cuda::ranges().open != 0) throw std::logic_error("a range is open");
  return std::exchange(cuda::ranges().names, {});
}
