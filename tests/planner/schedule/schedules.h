// Helpers for tests that request schedules.
#pragma once

#include <string_view>

#include "planner/schedule/registry.h"
#include "planner/schedule/timing.h"

namespace longspan::testing {

/// Times and memory of one microbatch on all stages of one rank, the same for every rank.
struct Asked {
  int32_t ranks = 4;
  int32_t microbatches = 8;
  int32_t virtual_stages = 1;
  int32_t slices = 1;
  int32_t group = 0;
  double forward = 1, input = 1, weight = 1, communication = 0;
  double copy = 1;           // time of an offload, and of a reload
  int64_t memory_limit = 0;  // in parts; a microbatch has virtual_stages * slices parts on a rank
};

inline ScheduleRequest request_of(const Asked& asked) {
  ScheduleRequest request{asked.ranks,       asked.virtual_stages, asked.microbatches,
                          asked.slices,      asked.group,          {},
                          asked.memory_limit};
  const int64_t parts = int64_t{asked.virtual_stages} * asked.slices;
  request.costs = uniform_costs(asked.virtual_stages,
                                {.forward = asked.forward,
                                 .input = asked.input,
                                 .weight = asked.weight,
                                 .recompute = asked.forward,
                                 .offload = asked.copy,
                                 .reload = asked.copy},
                                {.activations = parts, .for_weights = parts, .offloaded = parts},
                                asked.communication);
  return request;
}

inline Schedule schedule_of(std::string_view name, const Asked& asked) {
  return make_schedule(schedule_family(name), request_of(asked));
}

inline ScheduleTiming timing_of(std::string_view name, const Asked& asked) {
  const ScheduleRequest request = request_of(asked);
  return simulate(make_schedule(schedule_family(name), request), request.costs);
}

/// The bubble: the cost minus the computation of all microbatches, cost - m (F + I + W).
inline double bubble_of(std::string_view name, const Asked& asked) {
  return timing_of(name, asked).cost -
         asked.microbatches * (asked.forward + asked.input + asked.weight);
}

}  // namespace longspan::testing
