#include "engine/comm/self.h"

namespace longspan {

std::string_view SelfCommunicator::name() const { return "self"; }

void SelfCommunicator::abandon(const std::string& /*reason*/) noexcept {}

}  // namespace longspan
