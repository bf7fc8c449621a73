#include "planner/strategy/product_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

namespace longspan {
namespace {

constexpr std::array<ProductFormatRow, std::size(kProductFormatNames)> kFormats = {{
    {},
    {.bits = 8, .scales_tensor = true, .multiple = 16, .first_capability = 89},
    {.bits = 8,
     .block = 128,
     .weight_block = 128 * 128,
     .scale_bytes = 4,
     .multiple = 128,
     .first_capability = 90},
    {.bits = 8,
     .block = 32,
     .weight_block = 32,
     .scale_bytes = 1,
     .multiple = 32,
     .first_capability = 100},
    {.bits = 4,
     .block = 16,
     .weight_block = 16,
     .scale_bytes = 1,
     .scales_tensor = true,
     .multiple = 16,
     .first_capability = 100},
}};

}  // namespace

const ProductFormatRow& format_row(ProductFormat format) {
  return kFormats[static_cast<int>(format)];
}

std::optional<ProductFormat> product_format_named(std::string_view name) {
  const auto format =
      std::find(std::begin(kProductFormatNames), std::end(kProductFormatNames), name);
  if (format == std::end(kProductFormatNames)) return std::nullopt;
  return static_cast<ProductFormat>(format - std::begin(kProductFormatNames));
}

int64_t copy_bytes(ProductFormat format, int64_t elements, bool of_weights) {
  const ProductFormatRow& row = format_row(format);
  const int64_t block = of_weights ? row.weight_block : row.block;
  const int64_t scales = block > 0 ? elements / block * row.scale_bytes : 0;
  return elements / 8 * row.bits + scales + (row.scales_tensor ? 4 : 0);
}

std::string describe(const OddWidth& odd, ProductFormat format) {
  const std::string cut =
      odd.parts == 1 ? "" : fmt::format(" of each of {} {} parts", odd.parts, odd.knob);
  return fmt::format("{} needs multiples of {}, and {}{} is {}", name_of(format),
                     format_row(format).multiple, odd.what, cut, odd.width);
}

std::optional<OddWidth> odd_width(const Strategy& s, const ModelSpec& m) {
  const int64_t multiple = format_row(s.products).multiple;
  const int64_t tensor = s.parallel.tensor, ulysses = s.parallel.ulysses;
  std::optional<OddWidth> odd;
  const auto check = [&](const char* what, int64_t width, int64_t parts = 1,
                         const char* knob = "") {
    if (!odd && width / parts % multiple != 0) odd = OddWidth{what, width / parts, knob, parts};
  };
  check("the hidden width", m.hidden);
  if (m.latent) {
    const LatentAttention& l = *m.latent;
    check("the rank of queries", l.query_rank);
    check("the rank of keys", l.key_rank);
    check("the rank of keys with what is rotated", l.key_rank + l.rotated_dim);
    check("the width of keys and values", m.heads * (m.head_dim - l.rotated_dim + l.value_dim),
          tensor, "tensor");
  }
  if (m.attention) {
    // A group of heads has one K,V head at least.
    const int64_t kv = s.head_groups > 1 ? m.head_dim : m.kv_width() / tensor;
    check("the width of keys", kv * tensor, tensor, "tensor");
    check("the width of queries", m.attention_width(), tensor * s.head_groups,
          s.head_groups > 1 ? "head_groups" : "tensor");
    check("the width of attention's output", m.attended_width(), tensor, "tensor");
  }
  const auto check_mlp = [&](int64_t ffn) { check("the inner width", ffn, tensor, "tensor"); };
  if (m.runs.empty()) {
    if (!m.experts) check_mlp(m.ffn);
  } else {
    for (const LayerRun& run : m.runs) {
      if (!run.experts) check_mlp(run.ffn);
    }
  }
  if (m.experts) {
    check("the inner width of an expert", m.experts->ffn, tensor, "tensor");
    check("the inner width of shared experts", m.experts->shared_ffn, tensor, "tensor");
  }
  check("the chunk", s.chunk_tokens, ulysses, "ulysses");
  check("the block", s.block_tokens, tensor, "tensor");
  return odd;
}

}  // namespace longspan
