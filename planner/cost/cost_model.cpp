#include "planner/cost/cost_model.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "planner/cost/product_speed.h"

namespace longspan {
namespace {

// Share of the peak an unmeasured GEMM, attention or memory pass is assumed to reach.
constexpr double kAssumedEfficiency = 0.7;
// B/s of a missing drive: its capacity refuses the plan, and its time only has to be a number.
constexpr double kNoBandwidth = 1;

// Memory passes per element of the unmeasured elementwise kernels: tensors read plus written.
double passes(Kernel kernel) {
  switch (kernel) {
    case Kernel::norm_backward:
      return 4;
    case Kernel::activation_forward:
      return 3;
    case Kernel::activation_backward:
      return 8;
    case Kernel::loss:
      return 3;
    case Kernel::adamw:
    case Kernel::adamw_host:
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

// The kernel that runs for `kernel`: on the cpu backend the host is the device, so adamw_host is
// adamw.
Kernel run_as(const HardwareProfile& hw, Kernel kernel) {
  return kernel == Kernel::adamw_host && hw.device.backend == "cpu" ? Kernel::adamw : kernel;
}

// The table of a family, or the one that stands in for it.
const RateTable* find_table(const HardwareProfile& hw, Kernel kernel) {
  auto table = hw.rates.find(std::string(name_of(kernel)));
  if (table == hw.rates.end() && kernel == Kernel::attention_forward_diagonal) {
    table = hw.rates.find(std::string(name_of(Kernel::attention_forward)));
  }
  if (table == hw.rates.end() && kernel == Kernel::attention_backward_diagonal) {
    table = hw.rates.find(std::string(name_of(Kernel::attention_backward)));
  }
  return table == hw.rates.end() ? nullptr : &table->second;
}

double fallback_rate(const HardwareProfile& hw, Kernel kernel, DType dtype, double peak) {
  if (counts_flops(kernel)) return kAssumedEfficiency * peak;
  switch (kernel) {
    case Kernel::copy_h2d:
      return hw.link.h2d_bandwidth.value;
    case Kernel::copy_d2h:
      return hw.link.d2h_bandwidth.value;
    case Kernel::io_read:
      return std::max(kNoBandwidth, hw.nvme.read_bandwidth.value);
    case Kernel::io_write:
      return std::max(kNoBandwidth, hw.nvme.write_bandwidth.value);
    case Kernel::pass:
      return hw.device.memory_bandwidth.value;
    default: {
      // The optimizer's state is float32 whatever the activations are.
      const bool on_host = kernel == Kernel::adamw_host;
      const bool state = on_host || kernel == Kernel::adamw || kernel == Kernel::sumsq;
      const double bytes = state ? 4.0 : static_cast<double>(size_of(dtype));
      const Figure& bandwidth = on_host ? hw.host.memory_bandwidth : hw.device.memory_bandwidth;
      return kAssumedEfficiency * bandwidth.value / (bytes * passes(kernel));
    }
  }
}

// How many times longer a kernel takes while all devices of a node are busy. On the cpu backend the
// devices are one processor, and a copy is one thread's work. Devices always share the drives and
// the host's memory; devices that are not one processor share the links to the host.
double sharing(const HardwareProfile& hw, Kernel kernel) {
  const auto devices = static_cast<double>(hw.devices_per_node);
  if (devices == 1) return 1;
  const bool one_processor = devices_per_processor(hw) > 1;
  const auto copy = [&](const Figure& bandwidth) {
    const double of_link = one_processor
                               ? devices / static_cast<double>(hw.host.cores)
                               : std::min(static_cast<double>(hw.link.devices_sharing), devices);
    const double of_memory = devices * bandwidth.value / hw.host.memory_bandwidth.value;
    return std::max({1.0, of_link, of_memory});
  };
  switch (kernel) {
    case Kernel::copy_h2d:
      return copy(hw.link.h2d_bandwidth);
    case Kernel::copy_d2h:
      return copy(hw.link.d2h_bandwidth);
    case Kernel::io_read:
    case Kernel::io_write:
    case Kernel::adamw_host:
      return devices;
    default:
      return one_processor ? devices : 1;
  }
}

// The work that workers divide: the tiles of a product's result, the queries of attention.
Product product_of(Kernel kernel, const std::array<double, 3>& shape, double batch) {
  const auto [m, n, k] = shape;
  if (!is_product(kernel)) return {m, 1, 1, batch};
  return {m, n, k, batch};
}

int bit(Stream s) { return 1 << static_cast<int>(s); }
bool is_busy(unsigned busy, Stream s) { return (busy & bit(s)) != 0; }

// A device that is not the host's processor: its streams contend only for its memory and link.
void slow_device(const HardwareProfile& hw, unsigned busy, std::array<double, kStreamCount>& rate) {
  const auto slow = [&](Stream s, double factor) { rate[static_cast<int>(s)] *= factor; };
  if (is_busy(busy, Stream::h2d) && is_busy(busy, Stream::d2h)) {
    slow(Stream::h2d, hw.link.duplex_factor.value);
    slow(Stream::d2h, hw.link.duplex_factor.value);
  }
  if (is_busy(busy, Stream::h2d) || is_busy(busy, Stream::d2h)) {
    slow(Stream::compute, hw.compute_under_copy.value);
  }
  if (is_busy(busy, Stream::io)) slow(Stream::compute, hw.compute_under_io.value);
  if (is_busy(busy, Stream::compute) || is_busy(busy, Stream::host)) {
    slow(Stream::h2d, hw.copy_under_compute.value);
    slow(Stream::d2h, hw.copy_under_compute.value);
    slow(Stream::io, hw.io_under_compute.value);
  }
}

// The CPU backend: every stream is threads on the same cores. The profile's factors were measured
// with one copy (or I/O) during compute. Several at once slow compute down by the product of their
// factors and divide the pool's loss among themselves; one alone has all of its loss.
void share_cores(const HardwareProfile& hw, unsigned busy, std::array<double, kStreamCount>& rate) {
  const auto at = [&](Stream s) -> double& { return rate[static_cast<int>(s)]; };
  const int pools = is_busy(busy, Stream::compute) + is_busy(busy, Stream::host);
  // An exchange consists of copies, too, made by one thread of each rank.
  const int copies =
      is_busy(busy, Stream::h2d) + is_busy(busy, Stream::d2h) + is_busy(busy, Stream::comm);
  const int io = is_busy(busy, Stream::io);

  const double under_copy = hw.compute_under_copy.value, under_io = hw.compute_under_io.value;
  const double pool = std::pow(under_copy, copies) * std::pow(under_io, io);
  const double losses = copies * (1 - under_copy) + io * (1 - under_io);
  const double share = pools > 0 && losses > 0 ? (1 - pool) / losses : 1;

  at(Stream::compute) = at(Stream::host) = pool / std::max(1, pools);
  const double copy = (copies >= 2 ? hw.link.duplex_factor.value : 1) * share *
                      (pools > 0 ? hw.copy_under_compute.value : 1);
  at(Stream::h2d) = at(Stream::d2h) = at(Stream::comm) = copy;
  at(Stream::io) = share * (pools > 0 ? hw.io_under_compute.value : 1);
}

Interference make_interference(const HardwareProfile& hw) {
  Interference rates;
  for (unsigned busy = 0; busy < rates.size(); ++busy) {
    rates[busy].fill(1);
    if (hw.device.backend == "cpu") {
      share_cores(hw, busy, rates[busy]);
    } else {
      slow_device(hw, busy, rates[busy]);
    }
  }
  return rates;
}

}  // namespace

DType default_dtype(const HardwareProfile& hw) {
  return hw.device.backend == "cpu" ? DType::float32 : DType::bfloat16;
}

double peak_flops(const HardwareProfile& hw, DType dtype, ProductFormat products) {
  if (products != ProductFormat::dtype && product_peak(hw.device, products) > 0) {
    return product_peak(hw.device, products);
  }
  const double half = hw.device.peak_flops_bfloat16.value;
  return dtype == DType::bfloat16 && half > 0 ? half : hw.device.peak_flops_float32.value;
}

CostModel::CostModel(const HardwareProfile& hw, DType dtype)
    : node_devices_(static_cast<double>(hw.devices_per_node)),
      node_fabric_(hw.node_fabric),
      cluster_fabric_(hw.cluster_fabric) {
  op_overhead_seconds_ = hw.device.op_overhead_seconds.value;
  const auto cores = static_cast<double>(hw.host.cores);
  const double of_rank =
      std::max(1.0, std::floor(cores / static_cast<double>(devices_per_processor(hw))));
  if (hw.nodes == 1 && devices_per_processor(hw) > 1) {
    most_speed_ = std::max(1.0, static_cast<double>(hw.devices_per_node) * of_rank / cores);
  }
  for (int i = 0; i < kKernelCount; ++i) {
    const Kernel kernel = run_as(hw, static_cast<Kernel>(i));
    const RateTable* table = find_table(hw, kernel);
    if (table != nullptr) {
      // The curve holds what the rate would be if all workers were busy to the end.
      const auto own = static_cast<double>(table->tiling.workers);
      workers_[i] = own > 0 ? own : of_rank;
      tiling_[i] = table->tiling;
      RateTable even = *table;
      for (RatePoint& point : even.points) {
        point.rate /=
            tiled_share(table->tiling, own > 0 ? own : cores, product_of(kernel, point.shape, 1));
      }
      curves_[i] = RateCurve(even);
    }
    sharing_[i] = sharing(hw, kernel);
    fallback_[i] = fallback_rate(hw, kernel, dtype, peak_flops(hw, dtype));
    if (kernel == Kernel::copy_h2d || kernel == Kernel::copy_d2h) {
      latency_[i] = hw.link.latency_seconds.value;
    } else if (kernel == Kernel::io_read || kernel == Kernel::io_write) {
      latency_[i] = hw.nvme.latency_seconds.value;
    }
  }
  for (size_t i = 0; i < product_speeds_.size(); ++i) {
    const double speed = product_speed(hw.device, static_cast<ProductFormat>(i));
    product_speeds_[i] = speed > 0 ? speed : 1;
  }
  interference_ = make_interference(hw);
}

double CostModel::seconds(const Primitive& p) const {
  const int i = static_cast<int>(p.kernel);
  if (p.work <= 0) return 0;
  if (p.kernel == Kernel::exchange || p.kernel == Kernel::gather) return exchange_seconds(p);
  double rate =
      curves_[i].empty() ? fallback_[i] : curves_[i].at(p.shape[0], p.shape[1], p.shape[2]);
  if (!tiling_[i].shapes.empty()) {
    rate *= tiled_share(tiling_[i], workers_[i], product_of(p.kernel, p.shape, p.batch));
  }
  rate *= is_product(p.kernel) ? p.speed * product_speeds_[static_cast<size_t>(p.format)] : p.speed;
  return sharing_[i] * p.repeats * (latency_[i] + p.work / rate);
}

// Latency and bandwidth of the fabrics (the alpha-beta model). A group's neighbours are `stride`
// ranks apart, so `inside` of its members share a node. An exchange sends different bytes to each
// other rank. The bytes of a gather cross to each node once, over the links of all of the node's
// members.
double CostModel::exchange_seconds(const Primitive& p) const {
  const double bytes = p.shape[0], stride = p.shape[1], size = p.shape[2];
  const double inside = std::clamp(std::floor(node_devices_ / stride), 1.0, size);
  const double outside = size - inside;
  double node = 0, cluster = 0;
  if (inside > 1) {
    const double peers = p.kernel == Kernel::gather ? size - 1 : inside - 1;
    node = node_fabric_.latency_seconds.value + bytes * peers / node_fabric_.bandwidth.value;
  }
  if (outside > 0) {
    const double links = p.kernel == Kernel::gather ? inside : 1;
    cluster = cluster_fabric_.latency_seconds.value +
              bytes * outside / (links * cluster_fabric_.bandwidth.value);
  }
  return sharing_[static_cast<int>(p.kernel)] * std::max(node, cluster);
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
    // Whether a message has left is only looked at.
    double total = shape.kind == OpKind::sent ? 0 : op_overhead_seconds_;
    for (const Primitive& primitive : work) total += seconds(primitive);
    result.push_back(total);
  }
  return result;
}

std::vector<double> CostModel::speeds_of_stages(int64_t stages) const {
  std::vector<double> speeds;
  if (most_speed_ == 1) return speeds;
  for (int64_t running = 1; running <= stages; ++running) {
    const double share = static_cast<double>(stages) / static_cast<double>(running);
    speeds.push_back(std::min(most_speed_, share));
  }
  return speeds;
}

}  // namespace longspan
