#include "engine/cuda/attention_workspace.h"

#include <algorithm>

#include "base/units.h"

namespace longspan::cuda {
namespace {

// Hands out parts one behind the other.
class Parts {
 public:
  int64_t take(int64_t elements, int64_t bytes) {
    const int64_t offset = next_;
    next_ += round_up(checked_mul(elements, bytes, "attention workspace"), kPartBytes);
    return offset;
  }
  int64_t end() const { return next_; }

 private:
  int64_t next_ = 0;
};

}  // namespace

int64_t library_bytes(const AttentionShape& s, bool backward) {
  constexpr int64_t kSlack = int64_t{1} << 20;
  if (!backward) return kSlack;
  const int64_t per_query = checked_mul(s.heads, 4 * s.head_dim + 8, "attention workspace");
  const int64_t per_key = checked_mul(s.heads, 4 * s.head_dim, "attention workspace");
  return kSlack + checked_add(checked_mul(s.queries, per_query, "attention workspace"),
                              checked_mul(s.keys, per_key, "attention workspace"),
                              "attention workspace");
}

ForwardWorkspace forward_workspace(const AttentionShape& s) {
  Parts parts;
  ForwardWorkspace ws;
  ws.statistics = parts.take(s.heads * s.queries, 4);
  ws.partial = parts.take(s.queries * s.heads * s.head_dim, 2);
  ws.library = parts.end();
  return ws;
}

BackwardWorkspace backward_workspace(const AttentionShape& s) {
  Parts parts;
  BackwardWorkspace ws;
  ws.statistics = parts.take(s.heads * s.queries, 4);
  ws.output = parts.take(s.queries * s.heads * s.head_dim, 2);
  ws.dq = parts.take(s.queries * s.heads * s.head_dim, 2);
  ws.dk = parts.take(s.keys * s.kv_heads * s.head_dim, 2);
  ws.dv = parts.take(s.keys * s.kv_heads * s.head_dim, 2);
  ws.library = parts.end();
  return ws;
}

AttentionShape part_of_keys(const AttentionShape& shape, int64_t first) {
  AttentionShape part = shape;
  part.keys = std::min(shape.queries, shape.keys - first);
  part.offset = shape.offset - first;
  return part;
}

}  // namespace longspan::cuda
