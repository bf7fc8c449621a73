// A hardware profile: devices, memories, links and fabrics, with a source for every figure.
//
// A profile is a plain value. Figures keep their source (measured, vendor, paper) so that a
// prediction can be traced to its inputs; the loader refuses a figure without unit, source or date.
// Kernel rates are tables of measured points (a shape and a rate); cost rules interpolate between
// them and fall back to peak figures if a table is missing.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace longspan {

struct Figure {
  double value = 0;  // in `unit`, always the base unit: B, B/s, FLOP/s, s, 1
  std::string unit;
  std::string source;  // "measured: ...", "vendor: ...", "paper: ..." or "assumption: ..."
  std::string date;    // YYYY-MM-DD: measured or published, else date of entry
  bool operator==(const Figure&) const = default;
};

/// The source of a figure that the user states.
inline constexpr const char* kGivenByUser = "assumption: given on the command line";

/// One measured point: up to three shape numbers and the rate.
struct RatePoint {
  std::array<double, 3> shape{1, 1, 1};
  double rate = 0;
  bool operator==(const RatePoint&) const = default;
};

/// How a product is divided among a device's workers (cores, multiprocessors): its result consists
/// of tiles, and one worker computes each.
struct Tiling {
  struct Shape {
    double rows = 0, columns = 0;
    double rate = 1;  // rate of a worker on such tiles, relative to the best shape
    bool operator==(const Shape&) const = default;
  };
  std::vector<Shape> shapes;  // a product uses the best; empty: divided evenly
  int64_t workers = 0;        // 0: host.cores
  bool padded = false;        // a partial tile takes as long as a whole one
  double waited = 1;  // share of a partial last round that is waited for, 0 to 1; below 1 if
                      // kernels split the last tiles
  double ramp = 0;    // depth k that a worker could do in the start-up time of a tile
  bool operator==(const Tiling&) const = default;
};

/// Rates of one kernel family. Families and their shapes:
///   gemm_nt, gemm_nn, gemm_tn (m, n, k)              FLOP/s; C[m,n], nt = A[m,k] B[n,k]^T
///   attention_forward, attention_backward (queries, keys, head_dim)
///                                                    FLOP/s; no pair masked
///   attention_forward_diagonal, attention_backward_diagonal (queries, queries, head_dim)
///                                                    FLOP/s of the pairs a causal mask leaves
///   elementwise kernels (rows, width, 1)             element/s
///     norm_forward, norm_backward, rope, activation_forward, activation_backward, loss, adamw,
///     adamw_host (by the processor, where there is no device), sumsq, zero, embed_forward,
///     embed_backward, bias_gradient, add
///   pass (bytes, 1, 1)                               B/s read and written by elementwise kernels
///   copy_h2d, copy_d2h, io_read, io_write (bytes, 1, 1)  B/s
/// `unit` is FLOP/s, element/s or B/s accordingly.
struct RateTable {
  std::string unit;
  std::string source;
  std::string date;
  std::vector<RatePoint> points;
  Tiling tiling = {};  // for products
  bool operator==(const RateTable&) const = default;
};

using RateTables = std::map<std::string, RateTable>;  // by kernel family

struct DeviceProfile {
  std::string name;
  std::string backend;  // "cpu", "cuda", or "none": the engine backend that can run it
  /// 10 * major + minor of a CUDA device, on which libraries' workspaces depend; 0 if unknown.
  int64_t compute_capability = 0;
  Figure memory_bytes;         // capacity of the device tier
  Figure reserved_bytes;       // used by context and libraries before the first tensor
  Figure memory_bandwidth;     // B/s
  Figure peak_flops_float32;   // FLOP/s, matrix peak at this precision
  Figure peak_flops_bfloat16;  // FLOP/s; 0 if the device has no bfloat16
  Figure peak_flops_float8;    // FLOP/s of products in 8 bits; empty if unknown
  Figure peak_flops_float4;    // FLOP/s of products in 4 bits; empty if unknown
  Figure speedup_float8;       // 1: products below 16 bits over those of `rates`, if known ...
  Figure speedup_float4;       // ... separately from the peaks; else empty
  Figure op_overhead_seconds;  // launch or dispatch cost of one op
  /// Memory in use besides the arena while a plan runs, by name ("context", "scratch"); may be
  /// empty. The sum is at most reserved_bytes, which also includes memory that must stay free.
  std::map<std::string, Figure> overhead;
  bool operator==(const DeviceProfile&) const = default;
};

struct LinkProfile {     // device <-> host
  Figure h2d_bandwidth;  // B/s, alone
  Figure d2h_bandwidth;  // B/s, alone
  Figure duplex_factor;  // 1: rate of each direction while both run, relative to alone
  Figure latency_seconds;
  int64_t devices_sharing = 1;  // devices behind one such link
  bool operator==(const LinkProfile&) const = default;
};

struct HostProfile {
  Figure memory_bytes;      // capacity of the host tier, per node
  Figure memory_bandwidth;  // B/s
  int64_t cores = 1;
  bool operator==(const HostProfile&) const = default;
};

struct NvmeProfile {
  Figure capacity_bytes;   // value 0: no NVMe tier
  Figure read_bandwidth;   // B/s
  Figure write_bandwidth;  // B/s
  Figure latency_seconds;
  bool operator==(const NvmeProfile&) const = default;
};

struct FabricProfile {
  Figure bandwidth;  // B/s per device, one direction
  Figure latency_seconds;
  bool operator==(const FabricProfile&) const = default;
};

struct HardwareProfile {
  std::string name;
  int64_t nodes = 1;
  int64_t devices_per_node = 1;
  DeviceProfile device;
  HostProfile host;
  LinkProfile link;
  NvmeProfile nvme;
  FabricProfile node_fabric;     // between devices of one node
  FabricProfile cluster_fabric;  // between nodes
  /// The rate of compute while a copy (h2d, d2h) or file I/O runs, relative to the rate alone; and
  /// the rate of that copy or I/O while compute runs, relative to alone.
  Figure compute_under_copy;
  Figure compute_under_io;
  Figure copy_under_compute;
  Figure io_under_compute;
  Figure disturbed_share;  // 1: share of the timings behind the rates that other processes
                           // disturbed; may be empty
  RateTables rates;
  /// Attention has several implementations, and a program chooses one when it is linked.
  /// `attention_kernels` has the tables of each known one ("flash2", "flash3", "cudnn"; attention
  /// families only), `attention_kernel` the name of the one in `rates`. Both are empty if a device
  /// has only one.
  std::map<std::string, RateTables> attention_kernels;
  std::string attention_kernel;

  int64_t devices() const { return nodes * devices_per_node; }
  bool operator==(const HardwareProfile&) const = default;
};

/// The profile reduced to `devices` devices: some of one node's, or those of several whole nodes.
/// The job has these nodes to itself, including host memory. Throws bad_input unless that many
/// exist and divide evenly among nodes.
HardwareProfile with_devices(const HardwareProfile& hw, int64_t devices);

/// The profile with the attention tables of `kernel` in its rates. Throws bad_input listing the
/// known kernels, unless `kernel` is one of hw.attention_kernels.
HardwareProfile with_attention_kernel(const HardwareProfile& hw, const std::string& kernel);

/// The sum of device.overhead in bytes: a device's memory in use besides its arena. 0 if the
/// profile does not list it.
int64_t overhead_bytes(const HardwareProfile& hw);

/// The number of devices on one processor: all of a node's on the cpu backend. They share its time;
/// its memory is already divided (see load_hardware).
int64_t devices_per_processor(const HardwareProfile& hw);

/// Throws bad_input naming `origin` and the field for: missing figures, wrong units, values that
/// are not finite or not positive where they must be (zero is allowed for reserved_bytes,
/// latencies, op_overhead_seconds, peak_flops_bfloat16 and a missing NVMe tier; factors lie in (0,
/// 1]), sources without a kind, overheads above reserved_bytes, counts out of range, unknown kernel
/// families, rate tables without points or with two points at one shape, an attention kernel
/// without tables.
void validate(const HardwareProfile& hw, const std::string& origin);

}  // namespace longspan
