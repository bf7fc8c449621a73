#include "engine/cuda/ranges.h"

#include <nvtx3/nvToolsExt.h>

#include <string>

namespace longspan::cuda {
namespace {

// Null if no profiler is attached, which does not change while a program runs.
nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t made = nvtxDomainCreateA("longspan");
  return made;
}

}  // namespace

NamedRange::NamedRange(std::string_view name) {
  if (domain() == nullptr) return;
  const std::string text(name);
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = text.c_str();
  (void)nvtxDomainRangePushEx(domain(), &attributes);
}

NamedRange::~NamedRange() {
  if (domain() != nullptr) (void)nvtxDomainRangePop(domain());
}

}  // namespace longspan::cuda
