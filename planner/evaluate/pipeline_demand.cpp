#include "planner/evaluate/pipeline_demand.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/units.h"
#include "planner/pipeline/rank_memory.h"

namespace longspan {
namespace {

constexpr int kCompute = static_cast<int>(Stream::compute);

void scale(Demand& demand, double forward_and_backward, double rest) {
  for (int s = 0; s < kStreamCount; ++s) {
    demand.forward[s] *= forward_and_backward;
    demand.backward[s] *= forward_and_backward;
    demand.again[s] *= rest;
    demand.once[s] *= rest;
    demand.update[s] *= rest;
  }
  demand.waited_forward *= forward_and_backward;
  demand.waited_backward *= forward_and_backward;
  demand.loss *= forward_and_backward;
  demand.embed_forward *= forward_and_backward;
  demand.embed_backward *= forward_and_backward;
}

void add(Demand& sum, const Demand& more) {
  for (int s = 0; s < kStreamCount; ++s) {
    sum.forward[s] += more.forward[s];
    sum.backward[s] += more.backward[s];
    sum.again[s] += more.again[s];
    sum.once[s] += more.once[s];
    sum.update[s] += more.update[s];
  }
  sum.waited_forward += more.waited_forward;
  sum.waited_backward += more.waited_backward;
  sum.loss += more.loss;
  sum.embed_forward += more.embed_forward;
  sum.embed_backward += more.embed_backward;
  for (int m = 0; m < Demand::kMoments; ++m) {
    for (int tier = 0; tier < kTierCount; ++tier) sum.bytes[m][tier] += more.bytes[m][tier];
  }
}

Demand times(Demand demand, double factor) {
  scale(demand, factor, factor);
  for (auto& moment : demand.bytes) {
    for (double& bytes : moment) bytes *= factor;
  }
  return demand;
}

}  // namespace

PipelineDemand::PipelineDemand(const ModelSpec& model, const CostModel& cost, DType dtype,
                               int64_t compute_capability)
    : model_(model),
      cost_(cost),
      dtype_(dtype),
      compute_capability_(compute_capability),
      kinds_(layer_kinds(model)),
      orders_(model, dtype),
      slices_(kinds_.size()) {
  for (KindSlice& kind : slices_) {
    kind.request.dtype = dtype;
    kind.request.compute_capability = compute_capability;
  }
}

Bounds& PipelineDemand::bounds_of(size_t kind, int64_t layers, int64_t sequence,
                                  int64_t microbatches) {
  std::unique_ptr<Bounds>& known = bounds_[{kind, layers, sequence, microbatches}];
  if (known) return *known;
  StepRequest asked;
  asked.model = model_of_run(fit_to_length(model_, sequence), kinds_[kind]);
  asked.model.layers = layers;
  asked.sequence = sequence;
  asked.microbatches = microbatches;
  asked.dtype = dtype_;
  asked.compute_capability = compute_capability_;
  known = std::make_unique<Bounds>(asked, cost_);
  return *known;
}

// As slice_request(), but in place, as demands are frequent and a model is large. With `tokens`: of
// a slice of this length, of which the kind may have a share. Valid until the next call.
const StepRequest& PipelineDemand::slice_of(const Candidate& c, size_t kind, int64_t layers,
                                            int64_t tokens) {
  KindSlice& own = slices_[kind];
  if (own.layers != layers || own.sequence != c.sequence) {
    own.request.model = model_of_run(fit_to_length(model_, c.sequence), kinds_[kind]);
    own.request.model.layers = own.layers = layers;
    own.sequence = c.sequence;
  }
  own.request.strategy = c.strategy;
  own.request.sequence = c.sequence;
  cut_to_slice(own.request, kinds_[kind]);
  const int64_t mean = c.sequence / c.strategy.parallel.pipeline.slices;
  if (tokens > 0) own.request.sequence = own.request.sequence * tokens / mean;
  return own.request;
}

const PipelineDemand::EarlierSum& PipelineDemand::attention_of(const StepRequest& slice,
                                                               int64_t slices) {
  const ParallelLayout& p = slice.strategy.parallel;
  const auto [it, fresh] =
      attention_.try_emplace({slice.sequence, slice.strategy.chunk_tokens, slices, p.ulysses,
                              p.tensor, slice.strategy.deterministic, slice.strategy.kv});
  if (fresh) {
    const std::vector<int64_t> equal(static_cast<size_t>(slices),
                                     slice.sequence / slice.strategy.chunk_tokens);
    const EarlierWork earlier = earlier_work(slice, equal, cost_);
    for (size_t i = 0; i < equal.size(); ++i) {
      for (int s = 0; s < kStreamCount; ++s) {
        it->second.forward[s] += earlier.forward[i][s];
        it->second.backward[s] += earlier.backward[i][s];
      }
    }
  }
  return it->second;
}

// The demand of a rank with layers of one kind, and with both ends if `ends`. Between whole numbers
// of layers every row is a straight line.
Demand PipelineDemand::of_kind(const StepRequest& slice, size_t kind, double layers,
                               int64_t microbatches, bool ends) {
  const auto of = [&](int64_t whole) {
    return bounds_of(kind, whole, slice.sequence, microbatches).demand(slice.strategy);
  };
  if (ends && layers == std::floor(layers) && layers > 0) return of(static_cast<int64_t>(layers));
  const double first = ends ? 1 : 0;
  Demand sum = times(of(1), 2 * first - layers);
  add(sum, times(of(2), layers - first));
  return sum;
}

// Lower bounds on the times of the first slice, which passes the stages before the last rank works
// and after it is done. `alone`: the mean slice without attention to earlier ones; `forward` and
// `backward`: of all microbatches. As in costs_of() of pipeline_step.cpp, gradients of weights take
// a part of the forward, equally for all slices, so of the first slice they take more than its own.
// A slice of equal work is longer than the mean; that it attends to more tokens than as many mean
// slices would is left out.
PipelineDemand::SlicePass PipelineDemand::first_slice(const Candidate& c, const SlicePass& alone,
                                                      double forward, double backward) {
  const auto slices = static_cast<double>(c.strategy.parallel.pipeline.slices);
  const double dense = orders_.dense_share(c.sequence);
  const double weight =
      std::min(dense * forward, backward) / static_cast<double>(c.microbatches) / slices;
  const double length = slices * static_cast<double>(orders_.shares(c).front().tokens) /
                        static_cast<double>(c.sequence);
  return {length * alone.forward,
          length * (alone.backward - std::max(0.0, alone.forward - weight))};
}

// The work of the busiest rank on all microbatches is a bound for any schedule; a rank has at least
// the mean of the layers. Before it a slice passes the earlier stages, and after it gradients pass
// them again; a split backward may fill that second time with gradients of weights. Work that only
// some ranks have (embedding, output layer, an uneven layer) is only counted if all have it.
//
// Stages that share a processor compute faster while others wait. Then the mean work of all ranks
// is a bound, and the busiest rank's work with the passes before and after it, at the speed of a
// rank that computes alone. The one that is likely larger is taken.
Demand PipelineDemand::of(const Candidate& c, DemandOf rows) {
  constexpr size_t kMostBounds = 512;
  if (bounds_.size() > kMostBounds) bounds_.clear();
  const Pipeline pipeline = c.strategy.parallel.pipeline;
  const PipelineOrder& order = orders_.of(c);
  Demand sum;
  if (rows == DemandOf::bytes) {
    add_bytes(c, order, sum);
    return sum;
  }
  const int64_t all_slices = c.microbatches * pipeline.slices;
  const int64_t counted = std::min<int64_t>(2, all_slices);
  const bool cut = cuts_vocabulary(pipeline);
  const double passes =
      static_cast<double>(pipeline.stages - 1) / static_cast<double>(pipeline.virtual_stages);
  const std::vector<double> speeds = cost_.speeds_of_stages(pipeline.stages);
  const double alone = speeds.empty() ? 1 : speeds.front();
  const bool of_busiest = alone <= 1 + passes / static_cast<double>(all_slices);
  StreamSeconds earlier{}, earlier_forward{};
  bool even = true;
  for (size_t kind = 0; kind < kinds_.size(); ++kind) {
    const auto stages = static_cast<double>(pipeline.stages);
    const double mean = static_cast<double>(kinds_[kind].layers) / stages;
    const double layers = kinds_.size() == 1 && of_busiest ? std::ceil(mean) : mean;
    even &= kinds_[kind].layers % (pipeline.stages * pipeline.virtual_stages) == 0;
    const StepRequest& slice = slice_of(c, kind, std::max<int64_t>(1, std::llround(layers)));
    add(sum, of_kind(slice, kind, layers, counted, kind == 0));
    if (pipeline.slices == 1 || !slice.model.attention) continue;
    const auto& [forward, backward] = attention_of(slice, pipeline.slices);
    const double again = 1 + attention_again(slice.strategy);
    for (int s = 0; s < kStreamCount; ++s) {
      earlier[s] += layers * (again * forward[s] + backward[s]);
      earlier_forward[s] += layers * forward[s];
    }
  }
  const auto of_step = static_cast<double>(all_slices);
  // The part that differs between microbatches is added after scaling.
  for (int s = 0; s < kStreamCount; ++s) {
    sum.backward[s] -= static_cast<double>(counted - 1) * sum.again[s];
  }
  scale(sum, of_step / static_cast<double>(counted), 1);
  for (int s = 0; s < kStreamCount; ++s) sum.backward[s] += (of_step - 1) * sum.again[s];
  double& forward = sum.forward[kCompute];
  double& backward = sum.backward[kCompute];
  backward -= sum.loss;
  if (pipeline.stages > 1) {
    forward -= sum.embed_forward;
    backward -= sum.embed_backward;
  }
  SlicePass first = {forward / of_step, backward / of_step};
  const auto microbatches = static_cast<double>(c.microbatches);
  for (int s = 0; s < kStreamCount; ++s) {
    sum.forward[s] += microbatches * earlier_forward[s];
    sum.backward[s] += microbatches * (earlier[s] - earlier_forward[s]);
  }
  if (pipeline.slices > 1) first = first_slice(c, first, forward, backward);
  if (pipeline.stages > 1) {
    const double own = cut ? 1 / static_cast<double>(pipeline.stages) : even ? 1 : 0;
    sum.loss *= own;
    if (even && of_busiest) forward += passes * first.forward;
    if (even && of_busiest && !order.splits) backward += passes * first.backward;
  }
  backward += sum.loss;
  if (of_busiest) {
    for (Demand::Streams* row : {&sum.forward, &sum.backward, &sum.once, &sum.update}) {
      (*row)[kCompute] /= alone;
    }
  }
  add_bytes(c, order, sum);
  return sum;
}

// The bytes of a rank with one of the ends: the loss on the rank of the last stage, all other
// moments on that of the first.
void PipelineDemand::add_bytes(const Candidate& c, const PipelineOrder& order, Demand& sum) {
  const Pipeline pipeline = c.strategy.parallel.pipeline;
  const bool cut = cuts_vocabulary(pipeline);
  const int64_t counted =
      order.at_moments.accumulates ? std::min<int64_t>(2, c.microbatches * pipeline.slices) : 1;
  Demand bytes;
  // A layout of slices peaks at the last one; see held_in_sliced_lists().
  int64_t last = 0;
  double next = 0;
  if (order.sliced_layout) {
    const std::vector<SliceShare>& shares = orders_.shares(c);
    last = shares.back().tokens;
    next = static_cast<double>(shares[shares.size() - 2].tokens) / static_cast<double>(last);
  }
  const double slices = last > 0 ? static_cast<double>(c.sequence) / static_cast<double>(last)
                                 : static_cast<double>(pipeline.slices);
  SlicesInFlight in_flight(slices);
  TierBytes elsewhere{};
  const auto whole = [](const std::array<double, kTierCount>& bytes) {
    TierBytes rounded;
    for (size_t tier = 0; tier < bytes.size(); ++tier) rounded[tier] = std::llround(bytes[tier]);
    return rounded;
  };
  for (size_t kind = 0; kind < kinds_.size(); ++kind) {
    const int64_t layers = order.layers[kind];
    // A sum scales the program of the rank with most layers, a layout has one for each rank.
    const int64_t most = order.laid_out ? layers : order.most_layers[kind];
    const StepRequest& slice = slice_of(c, kind, most, last);
    Bounds& bounds = bounds_of(kind, most, slice.sequence, counted);
    const TensorBytes& sizes = bounds.tensors(slice.strategy);
    const SlicesInFlight own(slice, sizes, slices);
    in_flight.include(own, static_cast<double>(layers) / static_cast<double>(most));
    // A rank can have both embedding and head only with at most two stages.
    if (kind == 0 && cut) {
      elsewhere = whole(unit_states(slice, sizes, counted, {0, 2}));
      for (int64_t& tier : elsewhere) tier -= tier / pipeline.stages;
    } else if (kind == 0 && pipeline.stages > 1) {
      elsewhere = whole(unit_states(slice, sizes, counted, {2}));
    }
    const auto states = unit_states(slice, sizes, counted, {1});
    if (kind == 0) bytes = bounds.demand(slice.strategy, DemandOf::bytes);
    const auto more = static_cast<double>(kind == 0 ? layers - most : layers);
    for (auto& moment : bytes.bytes) {
      for (int tier = 0; tier < kTierCount; ++tier) {
        moment[tier] += more * (states[tier] +
                                static_cast<double>(own.alone()[tier]) / static_cast<double>(most));
      }
    }
  }
  if (cut) {
    bytes.bytes[Demand::kLossMoment][0] -=
        static_cast<double>(bytes.loss_bytes - bytes.loss_bytes / pipeline.stages);
  }
  // All that forwards save may be on the host, or not be there yet.
  if (order.frees) elsewhere[0] += in_flight.kept()[0];
  for (size_t moment = 0; moment < bytes.bytes.size(); ++moment) {
    TierBytes besides{};
    if (order.sliced_layout) {
      // No gradients wait when the last slice's loss is computed.
      const bool at_loss = moment == Demand::kLossMoment;
      const double gradients = at_loss ? 0 : 1 / static_cast<double>(pipeline.virtual_stages);
      in_flight.add_least(order.at_moments.held[moment], gradients, at_loss ? 0 : next, besides);
    } else {
      in_flight.add(order.at_moments.held[moment], besides);
    }
    for (int tier = 0; tier < kTierCount; ++tier) {
      sum.bytes[moment][tier] =
          bytes.bytes[moment][tier] + static_cast<double>(besides[tier] - elsewhere[tier]);
    }
  }
}

}  // namespace longspan
