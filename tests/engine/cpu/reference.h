// Reference implementations of the blocks of engine/cpu, as plain as possible: whole sequences,
// double precision, no tiles.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/cpu/blocks.h"
#include "models/model_spec.h"

namespace longspan::reference {

using Doubles = std::vector<double>;

/// A parameter unit and the offsets of its tensors.
struct Layer {
  const ModelSpec& model;
  const LayerOffsets& at;
  const Doubles& unit;
};

Doubles norm(const ModelSpec& model, const double* weight, const double* bias, const Doubles& x);
Doubles norm1(const Layer& layer, const Doubles& x);

struct Qkv {
  Doubles q, k, v;
};
/// `normed`: x is already normalized. `position0`: the position of the first row.
Qkv qkv(const Layer& layer, const Doubles& x, bool normed, int64_t position0);

struct Attention {
  Doubles o, lse;
};
/// Queries at [q0, q0+nq) over keys at [0, nk), causal, within the model's window. `sinks` [H] are
/// scores of keys without a value; empty: there are none.
Attention attention(const ModelSpec& model, const Doubles& q, const Doubles& k, const Doubles& v,
                    int64_t q0, const Doubles& sinks = {});
struct AttentionGradient {
  Doubles dq, dk, dv;
};
/// Keys are at [k0, k0+nk); lse and delta may cover more keys than these.
AttentionGradient attention_backward(const ModelSpec& model, const Doubles& q, const Doubles& k,
                                     const Doubles& v, const Doubles& d_o, const Doubles& lse,
                                     const Doubles& delta, int64_t q0, int64_t k0);
/// rowsum(d_o * o) per head.
Doubles row_dots(const ModelSpec& model, const Doubles& d_o, const Doubles& o);

Doubles out(const Layer& layer, const Doubles& x, const Doubles& o);

/// The output of an activation; gelu ignores `up`.
double activation(Activation kind, double gate, double up);

/// `inner`, if given, receives the pre-activations [n, W].
Doubles mlp(const Layer& layer, const Doubles& y, Doubles* inner = nullptr);

/// Sum over rows of scale * cross-entropy; `head` is the final norm's weight, then its
/// bias if it has one; `output` is [V, d].
double loss(const ModelSpec& model, const Doubles& head, const Doubles& output, const Doubles& x,
            const std::vector<int32_t>& labels, double scale);

/// Returns the gradient of f, which reads x, with respect to x by central differences, element by
/// element.
Doubles differences(const std::function<double()>& f, Doubles& x);

double dot(const Doubles& a, const Doubles& b);

}  // namespace longspan::reference
