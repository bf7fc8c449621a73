#include "planner/program/attention_workspace.h"

#include <algorithm>

#include "base/error.h"
#include "base/units.h"

namespace longspan {
namespace {

// Workspace of the library beyond the known needs of its kernels. Its plans that ask for more are
// not used.
constexpr int64_t kLibrarySlack = int64_t{1} << 20;
// cuDNN's deterministic backward (9.19) writes the gradients of all scores, with rows and columns
// rounded up to 64: 64 GiB at 16K tokens and 128 heads, by NVIDIA's own benchmark results.
constexpr int64_t kScoresRounding = 64;
constexpr int64_t kScoresBytes = int64_t{1} << 30;
constexpr int64_t kLongestDeterministic = 8192;

int64_t product(int64_t a, int64_t b) { return checked_mul(a, b, "attention workspace"); }

int64_t scores_bytes(const AttentionCall& c) {
  if (!c.deterministic) return 0;
  return product(2 * c.heads,
                 product(round_up(c.queries, kScoresRounding), round_up(c.keys, kScoresRounding)));
}

// Allocates parts one after another.
class Parts {
 public:
  int64_t take(int64_t rows, int64_t row_bytes) {
    const int64_t offset = next_;
    const int64_t bytes = round_up(product(rows, row_bytes), kAttentionPartBytes);
    next_ = checked_add(next_, bytes, "attention workspace");
    return offset;
  }
  int64_t end() const { return next_; }

 private:
  int64_t next_ = 0;
};

}  // namespace

int64_t key_gradient_bytes(bool grouped, int64_t compute_capability) {
  const int64_t major = compute_capability / 10;
  const bool of_datacenter = major >= 9 && major <= 11;  // Hopper, Blackwell without GeForce
  if (grouped) return of_datacenter ? 4 : 8;
  return of_datacenter ? 0 : 4;
}

void check_attention_memory(bool grouped, int64_t planned, int64_t device) {
  if (key_gradient_bytes(grouped, device) <= key_gradient_bytes(grouped, planned)) return;
  throw bad_input(
      "plan: its hardware has compute capability {}, this GPU {}, where attention takes more "
      "memory; plan for this GPU",
      planned, device);
}

AttentionForwardWorkspace attention_forward_workspace(const AttentionCall& c, bool into_sum) {
  Parts parts;
  AttentionForwardWorkspace ws;
  ws.statistics = parts.take(c.queries, 4 * c.heads);
  ws.partial = parts.take(into_sum ? c.queries : 0, 2 * product(c.heads, c.value_width()));
  ws.inside = parts.end();
  ws.inside_bytes = kLibrarySlack;
  return ws;
}

AttentionBackwardWorkspace attention_backward_workspace(const AttentionCall& c) {
  const int64_t q_width = product(c.heads, c.head_dim);
  const int64_t o_width = product(c.heads, c.value_width());
  Parts parts;
  AttentionBackwardWorkspace ws;
  ws.statistics = parts.take(c.queries, 4 * c.heads);
  ws.output = parts.take(c.queries, 2 * o_width);
  ws.dq = parts.take(c.queries, 2 * q_width);
  ws.dk = parts.take(c.keys, 2 * product(c.kv_heads, c.head_dim));
  ws.dv = parts.take(c.keys, 2 * product(c.kv_heads, c.value_width()));
  ws.inside = parts.end();
  const int64_t of_queries = product(c.queries, 4 * q_width + 8 * c.heads);
  const int64_t key_bytes = key_gradient_bytes(c.heads != c.kv_heads, c.compute_capability);
  const int64_t of_keys = product(c.keys, key_bytes * (q_width + o_width) / 2);
  ws.inside_bytes = kLibrarySlack;
  for (const int64_t bytes : {of_queries, of_keys, scores_bytes(c)}) {
    ws.inside_bytes = checked_add(ws.inside_bytes, bytes, "attention workspace");
  }
  return ws;
}

AttentionCall backward_tile(const AttentionCall& whole) {
  AttentionCall tile = whole;
  if (whole.deterministic) {
    int64_t side = kLongestDeterministic;
    const int64_t more = std::max<int64_t>(0, whole.window - 1);  // keys before the first query's
    while (side > kScoresRounding && 2 * whole.heads * side * (side + more) > kScoresBytes) {
      side -= kScoresRounding;
    }
    // The fewest tiles, of (nearly) equal size.
    tile.queries = ceil_div(whole.queries, ceil_div(whole.queries, side));
  }
  tile.keys = std::min(tile.queries, whole.keys);
  if (whole.window > 0) tile.keys = std::min(tile.queries + whole.window - 1, whole.keys);
  return tile;
}

}  // namespace longspan
