// The case that tests of Megatron-Core change: 4,096 tokens on each of eight GPUs, ZeRO 1.
#pragma once

#include <string>

#include "validation/case.h"

namespace longspan::testing {

inline PublishedCase megatron_core_case(const std::string& model, const std::string& hardware) {
  PublishedCase c;
  c.model = model;
  c.hardware = hardware;
  c.gpus = 8;
  c.stack = "megatron-core";
  c.precision = "bf16";
  c.sequence = 4096;
  c.microbatch = 1;
  c.global_batch = 32;
  c.degrees.data = 8;
  c.zero = 1;
  return c;
}

}  // namespace longspan::testing
