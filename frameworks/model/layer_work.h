// The work of a framework for one layer and one microbatch on one GPU: products,
// attention, passes over memory, exchanges; forward and backward. The same primitives and rates as
// the step program's ops, but no program, as other software runs it.
#pragma once

#include <vector>

#include "frameworks/model/product_precision.h"
#include "frameworks/model/stack.h"
#include "models/model_spec.h"
#include "planner/cost/work.h"

namespace longspan {

/// How a layer is partitioned.
struct LayerShape {
  int64_t sequence = 0;            // tokens
  int64_t sequences = 1;           // in a microbatch
  int64_t tensor = 1;              // ranks that share heads and inner width
  bool sequence_parallel = false;  // ... and the tokens in between
  int64_t context = 1;             // ranks that share the tokens ...
  int64_t ulysses = 1;             // ... of which this many exchange tokens for heads
  bool stored_scores = false;      // attention without a fused kernel
  bool dropout = true;             // where the stack has masks for it
  int64_t expert = 1;              // ranks that have different experts ...
  int64_t expert_tensor = 1;       // ... and that share an expert's inner width
  bool drops_tokens = false;       // experts have room for a fixed number of tokens
  double expert_load = 1;          // tokens of the busiest rank's experts, relative to the mean
  int64_t node = 8;                // devices of a node
  double element_bytes = 2;        // of an activation and of a weight in a product
  ProductPrecision precision;      // of products with parameters

  /// Tokens of one rank between the exchanges of its tensor group.
  double tokens() const {
    return static_cast<double>(sequence * sequences) / static_cast<double>(context);
  }
};

/// Rows and widths on one rank.
struct LayerWidths {
  double rows = 0, between = 0;             // tokens in a layer's products, and in norms and sums
  double hidden = 0, inner = 0, gated = 0;  // the model's, after and before the activation
  double queries = 0, keys = 0;             // heads times their size
  double values = 0, attended = 0;          // of values, and of attention's output
  /// Experts: pairs of a token and an expert that chose each other, those of tokens from this rank;
  /// and what this rank's experts get.
  double chosen = 0, routed = 0;
  double local = 0;                           // experts of this rank
  double expert_inner = 0, expert_gated = 0;  // width of one, after and before the activation
};
LayerWidths layer_widths(const ModelSpec& model, const LayerShape& shape);

/// Kernels in their order, and exchanges by what may hide them.
struct Pass {
  std::vector<Primitive> kernels;
  std::vector<Primitive> tensor, context;
  std::vector<Primitive> dispatch;  // of tokens to experts, and back
  double experts = 0;               // of this rank, which wait for a router
};

struct LayerWork {
  Pass forward;
  Pass backward;                  // without recomputation
  std::vector<Primitive> scores;  // forward kernels that selective recomputation repeats
  std::vector<Primitive> mlp;     // forward kernels of the MLP, experts left out
  Pass weights;                   // the part of backward that only the weights' gradients need
};

LayerWork layer_work(const ModelSpec& model, const Stack& stack, const LayerShape& shape);

/// The embedding and, after the last layer, norm, logits and loss; forward and backward together.
struct EndsWork {
  Pass embedding, head;
};
EndsWork ends_work(const ModelSpec& model, const Stack& stack, const LayerShape& shape);

}  // namespace longspan
