// The generators of all families of schedules, named by the registry. Internal to planner/schedule.
//
// Each gets a request with positive numbers that its row of the registry allows, and throws
// bad_input for anything else that it does not support.
#pragma once

#include "planner/schedule/request.h"

namespace longspan {

Schedule gpipe(const ScheduleRequest& request);
Schedule one_forward_one_backward(const ScheduleRequest& request);
Schedule interleaved_1f1b(const ScheduleRequest& request);
Schedule breadth_first(const ScheduleRequest& request);
Schedule kfkb(const ScheduleRequest& request);
Schedule zb_h1(const ScheduleRequest& request);
Schedule zb_h2(const ScheduleRequest& request);
Schedule interleaved_zero_bubble(const ScheduleRequest& request);
Schedule zb_auto(const ScheduleRequest& request);
Schedule zb_v(const ScheduleRequest& request);
Schedule zb_v_static(const ScheduleRequest& request);
Schedule v_half(const ScheduleRequest& request);
Schedule v_min(const ScheduleRequest& request);
Schedule v_half_vocabulary_1(const ScheduleRequest& request);
Schedule v_half_vocabulary_2(const ScheduleRequest& request);
Schedule v_adaptive(const ScheduleRequest& request);
Schedule dual_pipe(const ScheduleRequest& request);
Schedule dual_pipe_v(const ScheduleRequest& request);
Schedule braided(const ScheduleRequest& request);
Schedule vocabulary_1(const ScheduleRequest& request);
Schedule vocabulary_2(const ScheduleRequest& request);
Schedule seq1f1b(const ScheduleRequest& request);
Schedule chunk_flow(const ScheduleRequest& request);
Schedule sppo(const ScheduleRequest& request);
Schedule multiplexed_sppo(const ScheduleRequest& request);
Schedule seq1f1b_interleaved(const ScheduleRequest& request);
Schedule slimpipe(const ScheduleRequest& request);
Schedule grouped_interleaved(const ScheduleRequest& request);
Schedule half_grouped_interleaved(const ScheduleRequest& request);
Schedule half_offloaded(const ScheduleRequest& request);
Schedule fully_offloaded(const ScheduleRequest& request);
Schedule chronos(const ScheduleRequest& request);
Schedule chronos_recomputed(const ScheduleRequest& request);
Schedule terapipe(const ScheduleRequest& request);
Schedule helix(const ScheduleRequest& request);

}  // namespace longspan
