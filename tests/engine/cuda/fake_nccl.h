// What tests ask the fake NCCL (fake_nccl.cpp), and tell it.
#pragma once

namespace longspan::testing {

/// Communicators that have been made and not destroyed or aborted.
int nccl_communicators();

/// While it lives, NCCL is of this version, and does not start on that rank (-1: on all).
class FakeNccl {
 public:
  FakeNccl(int fake_version, int fails_on);
  ~FakeNccl();
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;
};

}  // namespace longspan::testing
