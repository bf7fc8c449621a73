// Attention in head groups: the whole sequence at once, a few heads at a time.
//
// The queries of a group are projected, exchanged and attend; their output goes to its columns of
// o, and the next group reuses their memory. K,V are grouped alike. If a rank has fewer K,V heads
// than groups, neighbouring groups share them: K,V are projected and exchanged with the first of
// these, and their gradients are finished with the last. Every projection computes the norm again,
// so that no tensor of the hidden width is kept across groups.
#include <algorithm>

#include "planner/program/lowering/lowering.h"

namespace longspan {

void StepLowering::forward_groups(int layer) {
  LayerSaved& mine = saved_[layer];
  mine.q.resize(head_groups_);
  mine.k.resize(head_groups_ / groups_per_kv_);
  mine.v.resize(head_groups_ / groups_per_kv_);
  ForwardBlock b;
  open_block(layer, 0, b);
  attend_groups(layer, b);
  close_block(layer, 0, b);
}

void StepLowering::attend_groups(int layer, const ForwardBlock& b) {
  std::vector<Projections> p(head_groups_);
  int taken = 0;
  for (int group = 0; group < head_groups_; ++group) {
    for (; taken <= std::min(group + ahead(), head_groups_ - 1); ++taken) {
      p[taken] = take_group(layer, taken, b.x, taken > 0 ? p[taken - 1] : Projections{});
    }
    builder_.set_head_group(group);
    attend_chunk(layer, 0, {p[group].k, p[group].v, {}, {}}, p[group], b.o, b.lse);
    leave_group(layer, group, p[group]);
  }
  builder_.set_head_group(0);
}

Projections StepLowering::take_group(int layer, int group, BufferId x, const Projections& before) {
  const LayerSaved& mine = saved_[layer];
  builder_.set_head_group(group);
  Projections p;
  if (!mine.q[group].empty()) {
    p.q = builder_.fetch(mine.q[group]);
    if (opens_kv(group)) {
      p.k = builder_.fetch(mine.k[kv_of(group)]);
      p.v = builder_.fetch(mine.v[kv_of(group)]);
    }
  } else {
    KeyValues kv;
    if (opens_kv(group)) {
      kv.k_all = device(Tensor::k_all, layer, 0);
      kv.v_all = device(Tensor::v_all, layer, 0);
    }
    p = project_chunk(layer, 0, x, false, kv);
  }
  if (!opens_kv(group)) {
    p.k = before.k;
    p.v = before.v;
  }
  return p;
}

void StepLowering::leave_group(int layer, int group, const Projections& p) {
  LayerSaved& mine = saved_[layer];
  const Saved keep = saved(s_.qkv, layer);
  const auto leave = [&](Parked& parked, BufferId id) {
    if (parked.empty()) {
      parked = builder_.park(id, keep);
    } else {
      builder_.release_fetched(parked, id);
    }
  };
  leave(mine.q[group], p.q);
  if (!closes_kv(group)) return;
  leave(mine.k[kv_of(group)], p.k);
  leave(mine.v[kv_of(group)], p.v);
}

void StepLowering::drop_group(int layer, int group) {
  LayerSaved& mine = saved_[layer];
  builder_.drop(mine.q[group]);
  if (!closes_kv(group)) return;
  builder_.drop(mine.k[kv_of(group)]);
  builder_.drop(mine.v[kv_of(group)]);
}

void StepLowering::group_attention_again(int layer) {
  LayerSaved& mine = saved_[layer];
  if (!mine.o[0].empty()) return;
  const bool projects = mine.q[0].empty();
  ForwardBlock b;
  if (projects) b.x = builder_.fetch(mine.x[0]);
  b.o = device(Tensor::o, layer, 0);
  b.lse = device(Tensor::lse, layer, 0);
  attend_groups(layer, b);
  if (projects) builder_.release_fetched(mine.x[0], b.x);
  mine.o[0].device = b.o;
  mine.lse[0].device = b.lse;
}

void StepLowering::backward_groups(int layer) {
  // The output projection and the MLP need the output of all groups. So without saved tensors each
  // group's queries are projected twice: for the output, and for the gradients.
  group_attention_again(layer);
  KeyValues none;
  std::vector<Parked> no_queries;
  BackwardBlock b = open_backward(layer, 0, none, no_queries);

  const int last = head_groups_ - 1;
  std::vector<Projections> p(head_groups_), gradients_of(head_groups_);
  std::vector<OutputGradient> output(head_groups_);
  Projections d;
  const auto open = [&](int group) {
    p[group] = take_group(layer, group, b.x, group > 0 ? p[group - 1] : Projections{});
    output[group] = output_gradient(layer, 0, b);
  };
  const auto attend_back = [&](int group) {
    builder_.set_head_group(group);
    if (opens_kv(group)) {
      d.k = device(Tensor::dk_all, layer, 0);
      d.v = device(Tensor::dv_all, layer, 0);
    }
    d.q = device(Tensor::dq, layer, 0);
    attention_gradient(layer, 0, {0, 1, true}, true, opens_kv(group), p[group], output[group], d);
    leave_group(layer, group, p[group]);
    drop_group(layer, group);
    if (exchanges_heads()) {
      builder_.release(output[group].d_o);
      builder_.release(output[group].delta);
    }
    gradients_of[group] = own_gradients(layer, 0, closes_kv(group) ? d : Projections{d.q});
  };
  const auto project_back = [&](int group) {
    builder_.set_head_group(group);
    backward_projection(layer, 0, b, gradients_of[group]);
  };
  int opened = 0;
  for (int group = 0; group <= last; ++group) {
    while (opened <= std::min(group + ahead(), last)) open(opened++);
    attend_back(group);
    if (group >= ahead()) project_back(group - ahead());
  }
  for (int group = last + 1 - ahead(); group <= last; ++group) project_back(group);
  builder_.set_head_group(0);
  builder_.release(b.out.d_o);
  builder_.release(b.out.delta);
  builder_.release(b.out.lse);
  close_backward(layer, 0, b);
}

}  // namespace longspan
