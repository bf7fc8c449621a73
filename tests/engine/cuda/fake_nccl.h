// Queries and settings of the fake NCCL (fake_nccl.cpp) for tests.
#pragma once

namespace longspan::testing {

/// Communicators that have been made and not destroyed or aborted.
int nccl_communicators();

/// While it lives, NCCL has this version and fails to start on that rank (-1: on all).
class FakeNccl {
 public:
  FakeNccl(int fake_version, int fails_on);
  ~FakeNccl();
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;
};

}  // namespace longspan::testing
