#include "engine/profile/device_profile.h"

#include <algorithm>

#include "base/bfloat16.h"
#include "base/error.h"
#include "base/processors.h"
#include "base/units.h"
#include "engine/profile/device_attention.h"
#include "engine/profile/device_contention.h"
#include "engine/profile/device_optimizer.h"
#include "engine/profile/machine.h"
#include "engine/profile/measured.h"
#include "engine/profile/transfers.h"
#include "hwprofiles/catalog.h"

namespace longspan {
namespace {

constexpr double kHostShare = 0.8;   // of available memory
constexpr double kHeadsShare = 0.1;  // of the time budget
// Memory left free for kernels that are loaded later, as cuBLASLt and cuDNN do per shape.
constexpr int64_t kSpareBytes = int64_t{256} << 20;
constexpr double kMatrixBytes = 3 * sizeof(bfloat16);  // traffic of one addition

// Returns the catalog's entry of a device by the name that its driver reports.
std::optional<HardwareProfile> catalog_entry(const std::string& device) {
  for (HardwareProfile& hw : load_hardware(device_names())) {
    if (hw.device.name == device) return std::move(hw);
  }
  return std::nullopt;
}

// Adds the device memory outside the arenas: from opening the device and from loading kernels.
void add_overhead(HardwareProfile& hw, const Figures& figures, cuda::Device& device,
                  int64_t kernel_bytes, int64_t wanted_bytes) {
  std::map<std::string, Figure>& terms = hw.device.overhead;
  for (const cuda::MemoryTerm& term : device.opening()) {
    terms[term.name] = figures.measured(static_cast<double>(term.bytes), "B", term.what);
  }
  terms["kernels"] = figures.measured(static_cast<double>(kernel_bytes), "B",
                                      "loaded when each kind of kernel had run once");
  const int64_t total = device.memory().total_bytes;
  const int64_t reserved = std::min(total - 1, overhead_bytes(hw) + kSpareBytes);
  if (wanted_bytes > total - reserved) {
    throw no_fit("device memory: {} asked for, the device has {} after context and libraries",
                 format_bytes(wanted_bytes), format_bytes(total - reserved));
  }
  hw.device.reserved_bytes =
      figures.measured(static_cast<double>(reserved), "B",
                       fmt::format("the terms of overhead, and {} for kernels loaded later",
                                   format_bytes(kSpareBytes)));
  hw.device.memory_bytes =
      wanted_bytes > 0
          ? figures.assumed(static_cast<double>(wanted_bytes + reserved), "B",
                            "as asked for, without what is reserved")
          : figures.measured(static_cast<double>(total), "B", "as the driver counts it");
}

// Takes peaks from the catalog, not from measurements: all devices of a kind have the same MFU
// base.
void add_peaks(HardwareProfile& hw, const Figures& figures,
               const std::optional<HardwareProfile>& entry) {
  if (entry) {
    DeviceProfile& device = hw.device;
    device.peak_flops_float32 = entry->device.peak_flops_float32;
    device.peak_flops_bfloat16 = entry->device.peak_flops_bfloat16;
    device.peak_flops_float8 = entry->device.peak_flops_float8;
    device.peak_flops_float4 = entry->device.peak_flops_float4;
    device.speedup_float8 = entry->device.speedup_float8;
    device.speedup_float4 = entry->device.speedup_float4;
    return;
  }
  const double best = best_rate(hw.rates, {"gemm_nt", "gemm_nn", "gemm_tn"});
  hw.device.peak_flops_bfloat16 =
      figures.measured(best, "FLOP/s", "the fastest product of the tables below");
  hw.device.peak_flops_float32 =
      figures.assumed(best / 16, "FLOP/s", "a sixteenth of the fastest product in bfloat16");
}

void add_link(HardwareProfile& hw, const Figures& figures, const Contention& contention,
              double hand_over) {
  hw.link.h2d_bandwidth =
      figures.measured(best_rate(hw.rates, {"copy_h2d"}), "B/s", "copies from pinned memory");
  hw.link.d2h_bandwidth =
      figures.measured(best_rate(hw.rates, {"copy_d2h"}), "B/s", "copies to pinned memory");
  hw.link.duplex_factor = figures.measured(contention.duplex, "1", "copies in both directions");
  hw.link.latency_seconds =
      figures.measured(hand_over, "s", "a queue waiting for an event of another");
  hw.compute_under_copy =
      figures.measured(contention.compute_under_copy, "1", "products during copies");
  hw.copy_under_compute =
      figures.measured(contention.copy_under_compute, "1", "copies during products");
  hw.compute_under_io = figures.measured(contention.compute_under_io, "1",
                                         "products while the host reads and writes files");
  hw.io_under_compute = figures.measured(contention.io_under_compute, "1", "files during products");
}

// Adds the fabrics, which cannot be measured with one device.
void add_fabrics(HardwareProfile& hw, const Figures& figures,
                 const std::optional<HardwareProfile>& entry) {
  if (entry) {
    hw.node_fabric = entry->node_fabric;
    hw.cluster_fabric = entry->cluster_fabric;
    hw.link.devices_sharing = entry->link.devices_sharing;
    return;
  }
  const double bandwidth = std::min(hw.link.h2d_bandwidth.value, hw.link.d2h_bandwidth.value);
  for (FabricProfile* fabric : {&hw.node_fabric, &hw.cluster_fabric}) {
    fabric->bandwidth = figures.assumed(bandwidth, "B/s", "not measured; as a link");
    fabric->latency_seconds =
        figures.assumed(hw.link.latency_seconds.value, "s", "not measured; as a link");
  }
}

// Fits how attention's rate falls with few heads and converts its tables. Returns a note on that.
std::string share_attention(RateTables& rates, const Sampler& by_heads, const DeviceGrid& grid,
                            int64_t processors) {
  const std::vector<HeadsRate> measured = attention_by_heads(by_heads.tables());
  if (measured.empty()) return {};
  const HeadsTiling fit = fit_heads(measured, processors);
  for (auto& [family, table] : rates) {
    if (family.starts_with("attention")) {
      share_by_heads(table, fit.tiling, static_cast<double>(grid.heads));
    }
  }
  return fmt::format(
      "; {} of {} heads of keys and values, shared by tiles that leave {:.0f} % at "
      "most from {} to {} heads",
      grid.heads, grid.kv_heads, 100 * fit.worst, grid.heads_tried.front(),
      grid.heads_tried.back());
}

}  // namespace

HardwareProfile measure_device(
    cuda::Device& device, const ProfileOptions& options, const DeviceGrid& grid,
    const std::function<void(const std::string& what, double share)>& progress) {
  check(options);
  const Unbound unbound;
  double shown = 0;  // progress never decreases
  const auto show = [&](const std::string& what, double share) {
    shown = std::clamp(share, shown, 1.0);
    if (progress) progress(what, shown);
  };
  const Clock::time_point begin = Clock::now();
  const cuda::DeviceFacts facts = device.facts();
  const Figures figures(fmt::format("{}, {}", device.name(), facts.software), today());
  const int64_t host_memory = available_memory_bytes();
  const int threads = options.compute_threads > 0 ? options.compute_threads : machine_processors();

  show("opening", 0);
  HardwareProfile hw;
  hw.name = "local";
  hw.devices_per_node = facts.devices;
  hw.host.cores = threads;
  hw.device.name = device.name();
  hw.device.backend = "cuda";
  hw.device.compute_capability = device.queue(Stream::compute).compute_capability;

  const std::unique_ptr<FileArena> file = measuring_file(options.nvme_directory);
  DeviceBench bench(device, grid);
  Scratch host_scratch;
  ThreadPool pool(threads);
  Sampler sampler, by_heads;
  add_product_samples(sampler, bench);
  add_row_samples(sampler, bench);
  add_state_samples(sampler, bench);
  add_host_optimizer_samples(sampler, bench, pool);
  add_copy_samples(sampler, bench);
  add_io_samples(sampler, host_scratch, *file);
  add_attention_samples(sampler, bench);
  add_heads_samples(by_heads, bench);

  bench.scratch.refresh();
  const int64_t before = device.memory().used_bytes;
  sampler.warm_up();
  add_overhead(hw, figures, device, std::max<int64_t>(0, device.memory().used_bytes - before),
               options.device_memory_bytes);

  show("contention", seconds_since(begin) / options.seconds_budget);
  const Contention contention = measure_contention(bench, *file);
  const auto between = [&] {
    if (options.between_rounds) options.between_rounds();
    bench.scratch.refresh();
    host_scratch.refresh();
  };
  // Measures until `share` of the time budget is spent; progress runs up to `share`, too.
  const auto measure = [&](Sampler& what, double share) {
    const double done = std::min(1.0, seconds_since(begin) / options.seconds_budget);
    const double seconds = std::max(0.0, share - done) * options.seconds_budget;
    what.measure(seconds, between, [&](const std::string& family, double part) {
      show(family, std::min(share, done + (share - done) * part));
    });
  };
  measure(sampler, 1 - kHeadsShare);
  measure(by_heads, 1);

  hw.rates = sampler.tables();
  warn_of_left_out(sampler, options);
  const std::string sharing = share_attention(hw.rates, by_heads, grid, facts.processors);
  for (auto& [family, table] : hw.rates) {
    const std::string how = family.starts_with("attention") ? "the engine's own kernels" + sharing
                            : family.starts_with("io")      ? "pread and pwrite"
                            : family == "adamw_host"
                                ? fmt::format("the processor's kernel, {} threads", threads)
                            : family.starts_with("copy") ? "copies of pinned memory"
                                                         : "the engine's own kernels";
    table.source = figures.source(how);
    table.date = figures.date();
  }

  const std::optional<HardwareProfile> entry = catalog_entry(hw.device.name);
  hw.device.memory_bandwidth =
      figures.measured(kMatrixBytes * best_rate(hw.rates, {"add"}), "B/s", "adding rows");
  add_peaks(hw, figures, entry);
  hw.device.op_overhead_seconds =
      figures.measured(bench.timer.op_overhead(tiny_kernel(bench)), "s", "events around one op");
  hw.host.memory_bytes =
      memory_capacity(figures, options.host_memory_bytes, kHostShare, host_memory);
  hw.host.memory_bandwidth =
      figures.measured(measure_memory_bandwidth(threads), "B/s", "copying 64 MiB");
  const double hand_over =
      bench.timer.hand_over(tiny_kernel(bench), one_copy(bench, Stream::h2d, grid.copies.front()));
  add_link(hw, figures, contention, hand_over);
  add_file_figures(hw, figures, options, measure_hand_over());
  add_fabrics(hw, figures, entry);
  show("done", 1);
  validate(hw, "profile");
  return hw;
}

}  // namespace longspan
