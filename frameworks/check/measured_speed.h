// A speed that a user has measured, in the unit of a trainer's log. Pure functions.
#pragma once

#include <string>

namespace longspan {

enum class SpeedUnit {
  tokens_per_gpu,  // tokens/s of one GPU
  tokens,          // tokens/s of all
  seconds,         // a step
  steps,           // a second
  teraflops,       // of one GPU, model FLOPs with all pairs of attention counted
  mfu,             // likewise, relative to the peak in bfloat16
};

struct MeasuredSpeed {
  double value = 0;  // in the unit without prefixes; a share for MFU
  SpeedUnit unit = SpeedUnit::seconds;
  bool operator==(const MeasuredSpeed&) const = default;
};

/// "1850tok/s/gpu", "14.8k tokens/s", "4.2 s/it", "0.24 it/s", "410 TFLOPS", "MFU 38%". Throws
/// bad_input naming `what` for a number without a unit, another unit, and a value of 0 or less.
MeasuredSpeed parse_measured_speed(const std::string& text, const std::string& what);

/// "tok/s/gpu", as parse_measured_speed() reads it.
std::string name_of(SpeedUnit unit);

/// The value with its unit; "full" means that all pairs of attention are counted.
std::string speed_text(const MeasuredSpeed& speed);

/// What a step does, to turn a speed into its seconds.
struct StepWork {
  double tokens = 0;
  double flops_per_gpu = 0;  // model FLOPs, all pairs counted
  double gpus = 1;
  double peak_flops = 0;  // of a GPU
};

/// Seconds of a step at this speed.
double step_seconds(const MeasuredSpeed& speed, const StepWork& work);

}  // namespace longspan
