// How long an op takes on a machine, and how much ops slow each other down.
//
// Built once from a hardware profile and then asked many times; immutable, safe to share between
// threads. docs/cost_model.md explains every term.
#pragma once

#include <array>
#include <vector>

#include "hwprofiles/hardware_profile.h"
#include "planner/cost/rate_curve.h"
#include "planner/cost/tiling.h"
#include "planner/cost/work.h"

namespace longspan {

/// Rate of each stream, as a fraction of alone, for every set of streams that are busy (bit s of
/// the set: stream s).
using Interference = std::array<std::array<double, kStreamCount>, 1 << kStreamCount>;

/// The natural compute precision of a device: float32 on the cpu backend, bfloat16 on others.
DType default_dtype(const HardwareProfile& hw);

/// FLOP/s of matrix products at this precision: the denominator of MFU. The float32 figure where a
/// device has none for bfloat16. With products below 16 bits it is their peak, although attention
/// and the output layer have the dtype's.
double peak_flops(const HardwareProfile& hw, DType dtype,
                  ProductFormat products = ProductFormat::dtype);

class CostModel {
 public:
  /// All of the hardware's devices run at once, one rank on each: they share links, storage and, on
  /// the cpu backend, the processor. REQUIRES: validate(hw) passed.
  CostModel(const HardwareProfile& hw, DType dtype);

  /// How many times as fast as its ops' durations a stage of a pipeline computes while only k of
  /// its `stages` do, at k - 1. Empty unless the stages share one processor.
  std::vector<double> speeds_of_stages(int64_t stages) const;

  /// Seconds one op of each of the program's shapes takes alone, in the order of program.shapes.
  std::vector<double> durations(const Program& program) const;
  /// The same for any list of shapes over the program's model and lengths.
  std::vector<double> durations(const Program& program, const std::vector<OpShape>& shapes) const;
  double seconds(const Primitive& primitive) const;
  /// Whether the profile has rates of the kernel. Without them, a share of the peak is taken.
  bool has_table(Kernel kernel) const { return !curves_[static_cast<int>(kernel)].empty(); }
  /// Whether the kernel's rates cover this shape. Outside them, the nearest edge's rate is taken.
  bool measured(const Primitive& primitive) const {
    return curves_[static_cast<int>(primitive.kernel)].covers(primitive.shape);
  }
  const Interference& interference() const { return interference_; }

 private:
  std::array<RateCurve, kKernelCount> curves_;
  std::array<double, kKernelCount> fallback_{};
  std::array<double, kKernelCount> latency_{};
  // By format, of those in the dtype; 1 where the device has none (check_products()).
  std::array<double, std::size(kProductFormatNames)> product_speeds_{};
  std::array<Tiling, kKernelCount> tiling_;
  std::array<double, kKernelCount> workers_{};  // workers that share a product of one rank
  double exchange_seconds(const Primitive& primitive) const;

  double op_overhead_seconds_ = 0;
  double most_speed_ = 1;                       // of a rank whose processor has nothing else to do
  std::array<double, kKernelCount> sharing_{};  // how many times longer, as devices of a node share
  double node_devices_ = 1;
  FabricProfile node_fabric_, cluster_fabric_;
  Interference interference_{};
};

}  // namespace longspan
