#include "engine/profile/device_kernels.h"

#include <algorithm>
#include <utility>

#include "engine/cuda/gemm.h"
#include "engine/cuda/kernels/activation.h"
#include "engine/cuda/kernels/embedding.h"
#include "engine/cuda/kernels/loss.h"
#include "engine/cuda/kernels/norm.h"
#include "engine/cuda/kernels/optimizer.h"
#include "engine/cuda/kernels/rope.h"
#include "engine/cuda/kernels/rows.h"
#include "engine/cuda/memory.h"

namespace longspan {
namespace {

using cuda::Into;
using cuda::Queue;

constexpr int64_t kHalf = sizeof(bfloat16), kFloat = sizeof(float);
constexpr int64_t kTiny = 64;

std::array<double, 3> shape_of(int64_t a, int64_t b = 1, int64_t c = 1) {
  return {static_cast<double>(a), static_cast<double>(b), static_cast<double>(c)};
}
double product_of(int64_t a, int64_t b, int64_t c = 1) {
  return static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(c);
}

// Adds samples of one shape, except those whose operands do not fit the scratch.
class Adder {
 public:
  Adder(Sampler& sampler, DeviceBench& bench, std::array<double, 3> shape, double work)
      : sampler_(sampler), bench_(bench), shape_(shape), work_(work) {}
  void operator()(const char* family, int64_t in_bytes, int64_t out_bytes, Submit submit) {
    put(family, in_bytes, out_bytes, bench_.runs(Stream::compute, std::move(submit)));
  }
  void product(const char* family, int64_t in_bytes, int64_t out_bytes, Submit submit) {
    put(family, in_bytes, out_bytes, bench_.loaded_runs(std::move(submit)));
  }

 private:
  void put(const char* family, int64_t in_bytes, int64_t out_bytes, TimedRuns run) {
    if (!bench_.scratch.holds(in_bytes, out_bytes)) return;
    sampler_.add(family, shape_, work_, std::move(run));
  }
  Sampler& sampler_;
  DeviceBench& bench_;
  std::array<double, 3> shape_;
  double work_;
};

void add_products_of_layers(Sampler& sampler, DeviceBench& bench, int64_t m, int64_t n, int64_t k) {
  DeviceScratch& scratch = bench.scratch;
  Adder add(sampler, bench, shape_of(m, n, k), 2 * product_of(m, n, k));
  const int64_t in = kHalf * (m + n) * k, out = kHalf * m * n;
  add.product("gemm_nt", in, out, [=, &scratch](const Queue& queue) {
    const auto *a = scratch.in<bfloat16>(m * k), *b = scratch.in<bfloat16>(n * k);
    cuda::gemm_nt(queue, m, n, k, a, k, b, k, Into::write, scratch.out<bfloat16>(m * n), n);
  });
  add.product("gemm_nn", in, out, [=, &scratch](const Queue& queue) {
    const auto *a = scratch.in<bfloat16>(m * k), *b = scratch.in<bfloat16>(n * k);
    cuda::gemm_nn(queue, m, n, k, a, k, b, n, Into::write, scratch.out<bfloat16>(m * n), n);
  });
}

void add_products_of_weights(Sampler& sampler, DeviceBench& bench, int64_t m, int64_t n,
                             int64_t k) {
  DeviceScratch& scratch = bench.scratch;
  Adder add(sampler, bench, shape_of(m, n, k), 2 * product_of(m, n, k));
  add.product("gemm_tn", kHalf * (m + n) * k, kFloat * m * n, [=, &scratch](const Queue& queue) {
    const auto *a = scratch.in<bfloat16>(m * k), *b = scratch.in<bfloat16>(n * k);
    cuda::gemm_tn(queue, m, n, k, a, m, b, n, Into::add, scratch.out<float>(m * n), n);
  });
}

cuda::RopeTable rope_of(int64_t width) {
  ModelSpec model;
  model.head_dim = std::min<int64_t>(width, 128);
  model.max_positions = int64_t{1} << 20;
  return cuda::rope_table(model);
}

// Adds norms, RoPE, additions, sums over rows, activations and embeddings at [rows, width].
void add_kernels_over_rows(Sampler& sampler, DeviceBench& bench, int64_t rows, int64_t width) {
  DeviceScratch& scratch = bench.scratch;
  const int64_t count = rows * width;
  Adder add(sampler, bench, shape_of(rows, width), product_of(rows, width));
  const cuda::NormKind norm{false, 1e-5F, width};
  add("norm_forward", kHalf * (count + width), kHalf * count, [=, &scratch](const Queue& queue) {
    const auto *x = scratch.in<bfloat16>(count), *weight = scratch.in<bfloat16>(width);
    cuda::norm_forward<bfloat16>(queue, norm, {weight, nullptr}, x, rows,
                                 scratch.out<bfloat16>(count));
  });
  add("norm_backward", kHalf * (2 * count + width), kHalf * count + kFloat * width,
      [=, &scratch](const Queue& queue) {
        const auto *x = scratch.in<bfloat16>(count), *dh = scratch.in<bfloat16>(count);
        const auto* weight = scratch.in<bfloat16>(width);
        auto* dx = scratch.out<bfloat16>(count);
        cuda::norm_backward<bfloat16>(queue, norm, {weight, nullptr}, x, dh, rows, dx, dx,
                                      {scratch.out<float>(width), nullptr});
      });
  add("add", kHalf * 2 * count, kHalf * count, [=, &scratch](const Queue& queue) {
    const auto *x = scratch.in<bfloat16>(count), *sum = scratch.in<bfloat16>(count);
    cuda::add_rows(queue, x, sum, count, scratch.out<bfloat16>(count));
  });
  add("bias_gradient", kHalf * count, kFloat * width, [=, &scratch](const Queue& queue) {
    const auto* dy = scratch.in<bfloat16>(count);
    cuda::add_column_sums(queue, dy, rows, width, width, scratch.out<float>(width));
  });
  const cuda::RopeTable rope = rope_of(width);
  add("rope", 0, kHalf * count, [=, &scratch](const Queue& queue) {
    cuda::rotate(queue, rope, rows, 0, width / (2 * rope.half), false,
                 scratch.out<bfloat16>(count));
  });
  const auto swiglu = Activation::swiglu;
  add("activation_forward", kHalf * 2 * count, kHalf * count, [=, &scratch](const Queue& queue) {
    const auto* inner = scratch.in<bfloat16>(2 * count);
    cuda::activate(queue, swiglu, rows, width, inner, scratch.out<bfloat16>(count));
  });
  // Includes the forward, which the backward recomputes.
  add("activation_backward", kHalf * count, kHalf * 3 * count, [=, &scratch](const Queue& queue) {
    auto* inner = scratch.out<bfloat16>(2 * count);
    const auto* d_act = scratch.in<bfloat16>(count);
    cuda::activate(queue, swiglu, rows, width, inner, scratch.out<bfloat16>(count));
    cuda::activate_backward(queue, swiglu, rows, width, d_act, inner);
  });
  const int64_t vocab = DeviceScratch::kTokens, table = vocab * width;
  add("embed_forward", kHalf * table, kHalf * count, [=, &scratch](const Queue& queue) {
    cuda::embed_forward<bfloat16>(queue, {scratch.in<bfloat16>(table), nullptr, vocab, width},
                                  scratch.tokens(), rows, 0, scratch.out<bfloat16>(count));
  });
  add("embed_backward", kHalf * count, kFloat * table, [=, &scratch](const Queue& queue) {
    const auto* dx = scratch.in<bfloat16>(count);
    cuda::embed_backward<bfloat16>(queue, scratch.tokens(), dx, rows, 0,
                                   {scratch.out<float>(table), nullptr, vocab, width});
  });
}

// The gradient overwrites the logits. Random logits are copied there first, untimed, to avoid NaNs.
void add_loss(Sampler& sampler, DeviceBench& bench, int64_t rows, int64_t vocab) {
  const int64_t count = rows * vocab, bytes = kHalf * count;
  if (!bench.scratch.holds(bytes, bytes)) return;
  const double scale = 1 / static_cast<double>(rows);
  sampler.add("loss", shape_of(rows, vocab), product_of(rows, vocab), [=, &bench](int repeats) {
    DeviceScratch& scratch = bench.scratch;
    auto* logits = scratch.out<bfloat16>(count);
    const auto* from = reinterpret_cast<const std::byte*>(scratch.in<bfloat16>(count));
    const auto copy = [&](const Queue& queue) {
      cuda::copy_bytes(queue, from, bytes, reinterpret_cast<std::byte*>(logits));
    };
    bench.timer.seconds({Stream::compute, copy}, 1, 0);
    const auto loss = [&](const Queue& queue) {
      cuda::cross_entropy(queue, scratch.tokens(), rows, vocab, scale, logits, scratch.sum());
    };
    return bench.timer.seconds({Stream::compute, loss}, repeats, 1);
  });
}

}  // namespace

DeviceBench::DeviceBench(cuda::Device& device, const DeviceGrid& grid)
    : device(device), timer(device), scratch(device, grid), grid(grid) {}

TimedRuns DeviceBench::runs(Stream stream, Submit submit) {
  return [this, work = QueueWork{stream, std::move(submit)}, first = true](int repeats) mutable {
    const bool lead = std::exchange(first, false) || repeats > 1;
    return timer.seconds(work, repeats, lead ? 1 : 0);
  };
}

TimedRuns DeviceBench::loaded_runs(Submit submit) {
  return
      [this, work = QueueWork{Stream::compute, std::move(submit)}, one = 0.0](int repeats) mutable {
        constexpr double kMost = 10'000;  // runs
        const double lead = one > 0 ? std::clamp(grid.load_seconds / one, 1.0, kMost) : 1;
        const double seconds = timer.seconds(work, repeats, static_cast<int>(lead));
        one = seconds / repeats;
        return seconds;
      };
}

void add_product_samples(Sampler& sampler, DeviceBench& bench) {
  for (const int64_t n : bench.grid.product_widths) {
    for (const int64_t k : bench.grid.product_widths) {
      for (const int64_t rows : bench.grid.product_rows) {
        add_products_of_layers(sampler, bench, rows, n, k);
        add_products_of_weights(sampler, bench, n, k, rows);
      }
    }
  }
}

void add_row_samples(Sampler& sampler, DeviceBench& bench) {
  for (const int64_t rows : bench.grid.rows) {
    for (const int64_t width : bench.grid.widths) {
      add_kernels_over_rows(sampler, bench, rows, width);
    }
  }
  for (const int64_t rows : bench.grid.loss_rows) {
    for (const int64_t vocab : bench.grid.vocabularies) add_loss(sampler, bench, rows, vocab);
  }
}

void add_state_samples(Sampler& sampler, DeviceBench& bench) {
  DeviceScratch& scratch = bench.scratch;
  for (const int64_t count : bench.grid.states) {
    Adder add(sampler, bench, shape_of(count), static_cast<double>(count));
    add("zero", 0, kFloat * count, [=, &scratch](const Queue& queue) {
      cuda::zero_bytes(queue, scratch.out<std::byte>(kFloat * count), kFloat * count);
    });
    add("sumsq", kFloat * count, 0, [=, &scratch](const Queue& queue) {
      cuda::sum_of_squares(queue, scratch.in<float>(count), count, scratch.sum());
    });
    add("adamw", kFloat * count, (3 * kFloat + kHalf) * count, [=, &scratch](const Queue& queue) {
      cuda::AdamWStep step;
      step.beta1 = 0.9F;
      step.beta2 = 0.95F;
      step.rate = 1e-3F;
      step.epsilon = 1e-8F;
      const float* g = scratch.in<float>(count);
      float *p = scratch.out<float>(count), *m = scratch.out<float>(count);
      float* v = scratch.out<float>(count);
      cuda::adamw(queue, step, scratch.one(), g, count, p, m, v, scratch.out<bfloat16>(count));
    });
  }
}

void add_copy_samples(Sampler& sampler, DeviceBench& bench) {
  for (const int64_t bytes : bench.grid.copies) {
    if (!bench.scratch.holds(bytes, bytes)) continue;
    for (const auto& [family, stream] :
         {std::pair{"copy_h2d", Stream::h2d}, std::pair{"copy_d2h", Stream::d2h}}) {
      sampler.add(family, shape_of(bytes), static_cast<double>(bytes),
                  bench.runs(stream, one_copy(bench, stream, bytes).submit));
    }
  }
}

QueueWork square_product(DeviceBench& bench, int64_t size) {
  DeviceScratch& scratch = bench.scratch;
  return {Stream::compute, [=, &scratch](const Queue& queue) {
            const auto* a = scratch.in<bfloat16>(size * size);
            const auto* b = scratch.in<bfloat16>(size * size);
            cuda::gemm_nt(queue, size, size, size, a, size, b, size, Into::write,
                          scratch.out<bfloat16>(size * size), size);
          }};
}

QueueWork one_copy(DeviceBench& bench, Stream stream, int64_t bytes) {
  DeviceScratch& scratch = bench.scratch;
  return {stream, [=, &scratch](const Queue& queue) {
            if (stream == Stream::h2d) {
              cuda::copy_bytes(queue, scratch.host(bytes), bytes, scratch.copied_up(bytes));
            } else {
              cuda::copy_bytes(queue, scratch.in<std::byte>(bytes), bytes,
                               scratch.copied_down(bytes));
            }
          }};
}

QueueWork tiny_kernel(DeviceBench& bench) {
  DeviceScratch& scratch = bench.scratch;
  return {Stream::compute, [&scratch](const Queue& queue) {
            cuda::add(queue, scratch.in<float>(kTiny), kTiny, scratch.out<float>(kTiny));
          }};
}

}  // namespace longspan
