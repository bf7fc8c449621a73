// Copies of what a forward has saved to the host and back, as actions of the schedule.
//
// A rank does not stop for a copy. Memory that a copied tensor leaves on the device is free from
// AWAIT_OFFLOAD on, and an op that takes it waits for the copy. Keys and values of slices stay, as
// later slices attend to them.
#include <algorithm>
#include <utility>

#include "planner/program/lowering/lowering.h"

namespace longspan {

std::vector<Parked*> StepLowering::saved_of_slice() {
  std::vector<Parked*> all;
  const auto add = [&](std::vector<Parked>& units, int first, int end) {
    for (int i = first; i < end; ++i) all.push_back(&units[i]);
  };
  for (int layer = stage_->first; layer < stage_->end; ++layer) {
    LayerSaved& saved = saved_[layer];
    for (auto* per_block : {&saved.x, &saved.o, &saved.lse, &saved.y, &saved.inner}) {
      add(*per_block, first_block(), end_block());
    }
    if (in_groups()) {
      add(saved.q, 0, static_cast<int>(saved.q.size()));
    } else if (!saved.q.empty()) {
      add(saved.q, first_chunk(), end_chunk());
    }
    if (slices_ > 1) continue;
    for (auto* per_part : {&saved.k, &saved.v}) {
      add(*per_part, 0, static_cast<int>(per_part->size()));
    }
    all.push_back(&saved.k_all);
    all.push_back(&saved.v_all);
  }
  add(gradient_, first_block(), end_block());
  return all;
}

std::vector<Away>::iterator StepLowering::find_away() {
  return std::find_if(away_.begin(), away_.end(), [&](const Away& away) {
    return away.stage == stage_->stage && away.microbatch == microbatch_ && away.slice == slice_;
  });
}

void StepLowering::offload(double share) {
  restore_in_flight();
  std::vector<Parked*> on_device;
  int64_t all = 0;
  for (Parked* saved : saved_of_slice()) {
    if (saved->device < 0) continue;
    on_device.push_back(saved);
    all += program_.bytes_of(saved->device);
  }
  Away away{stage_->stage, microbatch_, slice_};
  // The whole tensors nearest to the share, of the first layers: they wait longest.
  const double wanted = share * static_cast<double>(all);
  int64_t moved = 0;
  for (Parked* saved : on_device) {
    const int64_t bytes = program_.bytes_of(saved->device);
    if (static_cast<double>(moved) + static_cast<double>(bytes) / 2 > wanted) break;
    moved += bytes;
    away.device.push_back(saved->device);
    *saved = builder_.save(saved->device, Saved::host);
    away.host.push_back(saved->host);
  }
  away_.push_back(std::move(away));
  save_in_flight();
}

void StepLowering::await_offload() {
  const auto away = find_away();
  for (const BufferId id : away->device) builder_.release(id);
  away->device.clear();
}

void StepLowering::reload() {
  await_offload();  // if the list did not
  const auto away = find_away();
  restore_in_flight();
  const std::vector<Parked*> all = saved_of_slice();
  // Backward begins with the last layer.
  for (auto saved = all.rbegin(); saved != all.rend() && !away->host.empty(); ++saved) {
    const BufferId host = (*saved)->host;
    if (host != away->host.back()) continue;
    away->host.pop_back();
    **saved = {.device = builder_.fetch(**saved)};
    builder_.release(host);
  }
  away_.erase(away);
  save_in_flight();
}

}  // namespace longspan
