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
  // Every peer has been refused already, so there are no messages.
  void move(std::span<const Send> /*sends*/, std::span<const Receive> /*receives*/) override {}
  void do_start_send(const Send& /*send*/, MessageTag /*tag*/) override {}
  int64_t do_finish_send(int /*peer*/, MessageTag /*tag*/) override { return 0; }
  void do_receive(const Receive& /*receive*/, MessageTag /*tag*/) override {}
  bool do_cancel_sends() noexcept override { return true; }
};

}  // namespace longspan
