// A world of one rank. Nothing is sent; collectives only copy.
#pragma once

#include "engine/comm/communicator.h"

namespace longspan {

class SelfCommunicator final : public Communicator {
 public:
  SelfCommunicator() : Communicator(0, 1) {}
  std::string_view name() const override;
  void abandon(const std::string& reason) noexcept override;  ///< there is no rank to tell
  void throw_if_lost() const override {}

 private:
  void move(std::span<const Send> sends, std::span<const Receive> receives) override;
};

}  // namespace longspan
