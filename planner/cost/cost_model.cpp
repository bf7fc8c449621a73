#include "planner/cost/cost_model.h"

#include <algorithm>
#include <string>

namespace longspan {
namespace {

// Share of the peak an unmeasured GEMM, attention or memory pass is assumed to reach.
constexpr double kAssumedEfficiency = 0.7;

// Memory passes per element of the unmeasured elementwise kernels: tensors read plus written.
double passes(Kernel kernel) {
  switch (kernel) {
    case Kernel::norm_backward:
      return 4;
    case Kernel::activation_forward:
      return 3;
    case Kernel::activation_backward:
      return 5;
    case Kernel::loss:
      return 3;
    case Kernel::adamw:
      return 7;
    case Kernel::zero:
    case Kernel::sumsq:
    case Kernel::bias_gradient:
      return 1;
    case Kernel::add:
      return 3;
    default:
      return 2;
  }
}

Interference make_interference(const HardwareProfile& hw) {
  const auto bit = [](Stream s) { return 1u << static_cast<int>(s); };
  Interference rates;
  for (unsigned busy = 0; busy < rates.size(); ++busy) {
    const auto is_busy = [&](Stream s) { return (busy & bit(s)) != 0; };
    std::array<double, kStreamCount>& rate = rates[busy];
    rate.fill(1);
    const auto slow = [&](Stream s, double factor) { rate[static_cast<int>(s)] *= factor; };
    const bool copies = is_busy(Stream::h2d) || is_busy(Stream::d2h);
    const bool computes = is_busy(Stream::compute) || is_busy(Stream::host);
    if (is_busy(Stream::h2d) && is_busy(Stream::d2h)) {
      slow(Stream::h2d, hw.link.duplex_factor.value);
      slow(Stream::d2h, hw.link.duplex_factor.value);
    }
    if (copies) {
      slow(Stream::compute, hw.compute_under_copy.value);
      if (hw.device.backend == "cpu") slow(Stream::host, hw.compute_under_copy.value);
    }
    if (is_busy(Stream::io)) {
      slow(Stream::compute, hw.compute_under_io.value);
      if (hw.device.backend == "cpu") slow(Stream::host, hw.compute_under_io.value);
    }
    if (computes) {
      slow(Stream::h2d, hw.copy_under_compute.value);
      slow(Stream::d2h, hw.copy_under_compute.value);
      slow(Stream::io, hw.io_under_compute.value);
    }
    // On the CPU backend the device's cores are the host's.
    if (hw.device.backend == "cpu" && is_busy(Stream::compute) && is_busy(Stream::host)) {
      slow(Stream::compute, 0.5);
      slow(Stream::host, 0.5);
    }
  }
  return rates;
}

}  // namespace

CostModel::CostModel(const HardwareProfile& hw, DType dtype) {
  const double peak = dtype == DType::bfloat16 ? hw.device.peak_flops_bfloat16.value
                                               : hw.device.peak_flops_float32.value;
  peak_flops_ = peak > 0 ? peak : hw.device.peak_flops_float32.value;
  op_overhead_seconds_ = hw.device.op_overhead_seconds.value;
  for (int i = 0; i < kKernelCount; ++i) {
    const Kernel kernel = static_cast<Kernel>(i);
    const auto table = hw.rates.find(std::string(name_of(kernel)));
    if (table != hw.rates.end()) curves_[i] = RateCurve(table->second);
    switch (kernel) {
      case Kernel::gemm_nt:
      case Kernel::gemm_nn:
      case Kernel::gemm_tn:
      case Kernel::attention_forward:
      case Kernel::attention_backward:
        fallback_[i] = kAssumedEfficiency * peak_flops_;
        break;
      case Kernel::copy_h2d:
        fallback_[i] = hw.link.h2d_bandwidth.value;
        break;
      case Kernel::copy_d2h:
        fallback_[i] = hw.link.d2h_bandwidth.value;
        break;
      case Kernel::io_read:
        fallback_[i] = hw.nvme.read_bandwidth.value;
        break;
      case Kernel::io_write:
        fallback_[i] = hw.nvme.write_bandwidth.value;
        break;
      default: {
        // The optimizer's state is float32 whatever the activations are.
        const double bytes = kernel == Kernel::adamw || kernel == Kernel::sumsq
                                 ? 4.0
                                 : static_cast<double>(size_of(dtype));
        fallback_[i] =
            kAssumedEfficiency * hw.device.memory_bandwidth.value / (bytes * passes(kernel));
      }
    }
    if (kernel == Kernel::copy_h2d || kernel == Kernel::copy_d2h) {
      latency_[i] = hw.link.latency_seconds.value;
    } else if (kernel == Kernel::io_read || kernel == Kernel::io_write) {
      latency_[i] = hw.nvme.latency_seconds.value;
    }
  }
  interference_ = make_interference(hw);
}

double CostModel::seconds(const Primitive& p) const {
  const int i = static_cast<int>(p.kernel);
  if (p.work <= 0) return 0;
  const double rate =
      curves_[i].empty() ? fallback_[i] : curves_[i].at(p.shape[0], p.shape[1], p.shape[2]);
  return p.repeats * (latency_[i] + p.work / rate);
}

std::vector<double> CostModel::durations(const Program& program) const {
  return durations(program, program.shapes);
}

std::vector<double> CostModel::durations(const Program& program,
                                         const std::vector<OpShape>& shapes) const {
  std::vector<double> result;
  result.reserve(shapes.size());
  std::vector<Primitive> work;
  for (const OpShape& shape : shapes) {
    work_of(program, shape, work);
    double total = op_overhead_seconds_;
    for (const Primitive& primitive : work) total += seconds(primitive);
    result.push_back(total);
  }
  return result;
}

}  // namespace longspan
