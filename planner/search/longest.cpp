#include "base/error.h"
#include "planner/search/search.h"

namespace longspan {
std::string_view name_of(Limit limit) {
  constexpr std::string_view names[] = {"none", "device memory", "host memory", "nvme capacity",
                                        "positions"};
  return names[static_cast<int>(limit)];
}
MaxSequence max_sequence(const ModelSpec&, const HardwareProfile&,
                         const std::string&, const MaxSequenceOptions&,
                         const Progress&) { throw failed("not yet"); }
}
