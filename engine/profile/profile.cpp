#include "engine/profile/profile.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/processors.h"
#include "engine/comm/local.h"
#include "engine/cpu/gemm.h"
#include "engine/profile/contention.h"
#include "engine/profile/fabric.h"
#include "engine/profile/kernels.h"
#include "engine/profile/machine.h"
#include "engine/profile/measured.h"
#include "engine/profile/transfers.h"

namespace longspan {
namespace {

constexpr double kMemoryShare = 0.4;       // of available memory, for each of device and host
constexpr double kContentionShare = 0.15;  // of the time budget
constexpr double kFigureSeconds = 0.3;     // for the figures without a table

}  // namespace

void measure_fabric(HardwareProfile& hw, Communicator& comm, int ranks_here) {
  const bool one_node = ranks_here == comm.size();
  const FabricRates rates = measure_exchange(comm, one_node);
  const Figures figures(hw.device.name, today());
  const std::string how = fmt::format("an all-to-all of {} ranks ({})", comm.size(),
                                      comm.name() == "local" ? "threads" : "MPI");
  add_fabric(hw, figures, rates, one_node, how);
}

HardwareProfile measure_machine(
    const ProfileOptions& options,
    const std::function<void(const std::string& what, double share)>& progress) {
  check(options);
  const Clock::time_point begin = Clock::now();
  const Unbound unbound;
  const auto show = [&](const std::string& what, double share) {
    if (progress) progress(what, share);
  };
  const int threads = options.compute_threads > 0 ? options.compute_threads : machine_processors();
  const std::string processor = processor_name();
  const Figures figures(fmt::format("{}, {} thread{}", processor, threads, threads == 1 ? "" : "s"),
                        today());
  const int64_t memory = available_memory_bytes();
  check_capacities(options, total_memory_bytes());

  HardwareProfile hw;
  hw.name = "local";
  hw.host.cores = threads;
  hw.device.name = processor;
  hw.device.backend = "cpu";

  // Contention first: it needs the least memory, so that problems of the machine show early.
  show("contention", 0);
  ThreadPool pool(threads);
  Contention contention;
  Sampler sampler;
  {
    const std::unique_ptr<FileArena> file = measuring_file(options.nvme_directory);
    contention = measure_contention(pool, *file, kContentionShare * options.seconds_budget);
    Scratch scratch;
    add_product_samples(sampler, pool, scratch);
    add_attention_samples(sampler, pool, scratch);
    add_row_samples(sampler, pool, scratch);
    add_state_samples(sampler, pool, scratch);
    add_copy_samples(sampler, scratch);
    add_io_samples(sampler, scratch, *file);
    sampler.keep_to_time();
    const auto between = [&] {
      if (options.between_rounds) options.between_rounds();
      scratch.refresh();
    };
    // The time spent so far counts: it can be most of a short budget.
    const double left = std::max(0.1 * options.seconds_budget,
                                 options.seconds_budget - kFigureSeconds - seconds_since(begin));
    sampler.measure(left, between, [&](const std::string& what, double share) {
      show(what, kContentionShare + (1 - kContentionShare) * share);
    });
  }
  hw.rates = sampler.tables();
  warn_of_left_out(sampler, options);
  if (const double share = sampler.disturbed_share(); share > 0) {
    hw.disturbed_share = figures.measured(share, "1", "timings that waited for a processor");
  }
  for (auto& [family, table] : hw.rates) {
    table.source =
        figures.source(fmt::format("the engine's own kernel, {:.0f} % of the timings disturbed by "
                                   "other processes",
                                   100 * sampler.disturbed_share()));
    table.date = figures.date();
    if (family.starts_with("gemm")) {
      table.tiling.shapes = {
          {static_cast<double>(cpu::kGemmBlockRows), static_cast<double>(cpu::kGemmBlockCols)}};
    }
  }

  const double bandwidth = measure_memory_bandwidth(threads);
  const double hand_over = measure_hand_over();
  const double h2d = best_rate(hw.rates, {"copy_h2d"}), d2h = best_rate(hw.rates, {"copy_d2h"});
  const char* by_copying = "copying 64 MiB";
  hw.device.memory_bytes =
      memory_capacity(figures, options.device_memory_bytes, kMemoryShare, memory);
  hw.device.reserved_bytes = figures.assumed(0, "B", "the device tier is one arena of its size");
  hw.device.memory_bandwidth = figures.measured(bandwidth, "B/s", by_copying);
  hw.device.peak_flops_float32 =
      figures.measured(best_rate(hw.rates, {"gemm_nt", "gemm_nn", "gemm_tn"}), "FLOP/s",
                       "the fastest product of the tables below");
  hw.device.peak_flops_bfloat16 =
      figures.assumed(0, "FLOP/s", "the cpu backend computes in float32");
  hw.device.op_overhead_seconds =
      figures.measured(measure_op_overhead(), "s", "clocks and progress around one op");
  hw.host.memory_bytes = memory_capacity(figures, options.host_memory_bytes, kMemoryShare, memory);
  hw.host.memory_bandwidth = figures.measured(bandwidth, "B/s", by_copying);
  hw.link.h2d_bandwidth = figures.measured(h2d, "B/s", "memcpy by one thread");
  hw.link.d2h_bandwidth = figures.measured(d2h, "B/s", "memcpy by one thread");
  hw.link.duplex_factor = figures.measured(contention.duplex, "1", "two threads copying");
  hw.link.latency_seconds = figures.measured(hand_over, "s", "waking the thread of another stream");
  add_file_figures(hw, figures, options, hand_over);
  hw.cluster_fabric.bandwidth = figures.assumed(std::min(h2d, d2h), "B/s", "one node; as a link");
  hw.cluster_fabric.latency_seconds = figures.assumed(hand_over, "s", "one node; as a link");
  run_local_ranks(2, [&](Communicator& comm) {
    HardwareProfile copy = hw;
    measure_fabric(copy, comm, comm.size());
    if (comm.rank() == 0) hw.node_fabric = copy.node_fabric;
  });
  hw.compute_under_copy =
      figures.measured(contention.compute_under_copy, "1", "products while a thread copies");
  hw.compute_under_io = figures.measured(contention.compute_under_io, "1",
                                         "products while a thread reads and writes");
  hw.copy_under_compute =
      figures.measured(contention.copy_under_compute, "1", "a thread copying during products");
  hw.io_under_compute = figures.measured(contention.io_under_compute, "1",
                                         "a thread reading and writing during products");
  show("done", 1);
  validate(hw, "profile");
  return hw;
}

}  // namespace longspan
