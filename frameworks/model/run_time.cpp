#include "frameworks/model/run_time.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "frameworks/model/number.h"
#include "frameworks/model/partition.h"
#include "frameworks/model/run_host.h"
#include "frameworks/model/run_memory.h"
#include "frameworks/model/slowest_rank.h"
#include "planner/cost/cost_model.h"

namespace longspan {
namespace {

// Seconds of one pass through a layer, or through an end of the model.
struct Seconds {
  double compute = 0, tensor = 0, context = 0, experts = 0;
  double all() const { return compute + tensor + context + experts; }
  Seconds& operator+=(const Seconds& other) {
    compute += other.compute;
    tensor += other.tensor;
    context += other.context;
    experts += other.experts;
    return *this;
  }
  friend Seconds operator+(Seconds a, const Seconds& b) { return a += b; }
  Seconds operator*(double times) const {
    return {compute * times, tensor * times, context * times, experts * times};
  }
};

// The ranks whose slowest is in the rates of kernels: most were measured on a node of eight.
constexpr double kKnown = 8;

class Run {
 public:
  Run(const TrainingRun& c, const ModelSpec& model, const HardwareProfile& hw, const Stack& stack)
      : c_(c),
        model_(model),
        stack_(stack),
        hw_(hw),
        cost_(hw, DType::bfloat16),
        shape_(layer_shape(c)),
        microbatches_(microbatches(c)),
        mix_(layer_mix(model)),
        own_(parameters_of_rank(c, model, 0, ends_of(c, 0))),
        parameters_(own_.all()),
        replicas_(replicas(c)),
        sharers_(sharers(c)) {
    shape_.precision = product_precision(c.precision, hw, stack);
  }

  // The times of an average layer of the model.
  MicrobatchSeconds microbatch() const {
    const double slices = number(c_.slices);
    LayerShape cut = shape_;
    cut.sequence /= c_.slices;
    MicrobatchSeconds result;
    result.layer.forward = result.layer.input = result.layer.weight = 0;
    double all = 0;
    for (size_t i = 0; i < mix_.kinds.size(); ++i) {
      double layers = 0;
      for (int64_t stage = 0; stage < c_.degrees.pipeline; ++stage) {
        layers += layers_by_kind(c_, model_, stage)[i];
      }
      const LayerGroup& kind = mix_.kinds[i];
      const LayerWork whole = layer_work(kind.model, stack_, shape_of(shape_, kind));
      const LayerWork slice = layer_work(kind.model, stack_, shape_of(cut, kind));
      const double forward = seconds(sliced(slice.forward, whole.forward)).all() * slices;
      const double backward = seconds(sliced(slice.backward, whole.backward)).all() * slices;
      double weight = std::min(device_seconds(slice.weights) * slices, backward);
      double input = backward - weight;
      weight += summing_gradients(parameters_of_layer(c_, kind).all());
      if (c_.recompute == Recompute::selective) {
        input += seconds(selective_pass(slice)).all() * slices;
      }
      result.layer.forward += layers * forward;
      result.layer.weight += layers * weight;
      result.layer.input += layers * input;
      all += layers;
    }
    for (double* part : {&result.layer.forward, &result.layer.weight, &result.layer.input}) {
      *part /= all;
    }
    result.recomputed = result.layer.forward;
    ModelSpec of_rank = with_outputs(c_, model_);
    if (cuts_vocabulary(c_))
      of_rank.vocab = (model_.vocab + c_.degrees.pipeline - 1) / c_.degrees.pipeline;
    const EndsWork ends = ends_work(of_rank, stack_, cut);
    result.embedding = seconds(ends.embedding).all() * slices;
    result.head = heads() * seconds(ends.head).all() * slices;
    result.besides = stack_.microbatch_s.value;
    result.hop = hop(slices);
    result.stop = stack_.message_stop.value * result.hop;
    const double kept = kept_layer_bytes(c_, model_, hw_, stack_);
    result.offload = copy(Kernel::copy_d2h, kept);
    result.reload = copy(Kernel::copy_h2d, kept);
    return result;
  }

  RunTime time(const RunPipeline* known) {
    const EndsWork ends = ends_work(with_outputs(c_, model_), stack_, shape_);
    const std::vector<KindSeconds> kinds = kind_seconds();
    const Seconds embedding = seconds(ends.embedding), head = seconds(ends.head) * heads();

    // Times of each stage, for one microbatch.
    const int64_t stages = c_.degrees.pipeline;
    std::vector<Seconds> stage(stages);
    for (int64_t i = 0; i < stages; ++i) {
      const std::vector<double> layers = layers_by_kind(c_, model_, i);
      for (size_t k = 0; k < kinds.size(); ++k) {
        stage[i] += (kinds[k].forward + kinds[k].backward) * layers[k];
        stage[i] += kinds[k].forward * (again(i) * layers[k]);
        if (c_.recompute == Recompute::selective) stage[i] += kinds[k].selective * layers[k];
        if (c_.tiled_mlp) stage[i] += kinds[k].tiles * layers[k];
      }
      stage[i].compute += summing_gradients(rank_parameters(c_, model_, i));
    }
    stage.front() += embedding;
    stage.back() += head;
    const Seconds& slowest = *std::max_element(
        stage.begin(), stage.end(), [](const auto& a, const auto& b) { return a.all() < b.all(); });

    RunTime time;
    time.compute = slowest.compute * microbatches_;
    time.tensor = slowest.tensor * microbatches_;
    time.context = slowest.context * microbatches_;
    time.experts = slowest.experts * microbatches_;
    if (c_.schedule.empty()) {
      time.bubble = bubble(stage, slowest);
    } else {
      const RunPipeline pipeline =
          known != nullptr ? *known : run_pipeline(c_, model_, stack_, microbatch());
      const double idle = 1 - pipeline.busy / pipeline.seconds;
      const double faster = 1 - stack_.idle_speedup.value * idle;
      time.compute = faster * pipeline.busy;
      time.bubble = faster * (pipeline.seconds - pipeline.busy);
      time.tensor = time.context = time.experts = 0;
    }
    // A bubble passes through fast and slow stages alike.
    const double slower = waiting_for_slowest(stack_.rank_spread.value, number(c_.gpus), kKnown);
    for (double* const part : {&time.compute, &time.tensor, &time.context, &time.experts}) {
      *part *= slower;
    }
    time.data = c_.zero >= 2 ? data_by_layers(kinds) : data(slowest.compute);
    const double here = 1 - offloaded(c_.offload.optimizer, 0);
    // States are read and written.
    const double saved =
        2 * (stack_.optimizer_state_bytes.value - optimizer_state_bytes(c_, stack_));
    const double of_optimizer = std::max(0.0, stack_.optimizer_bytes.value - saved);
    const double cut = shard_of(c_, own_);
    const double moved = (c_.zero > 1 ? cut : parameters_) * stack_.gradient_touch_bytes.value +
                         (c_.zero > 0 ? cut : parameters_) * here * of_optimizer;
    time.update = moved / (hw_.device.memory_bandwidth.value * stack_.pass_share.value);
    time.host = host_seconds(c_, hw_, stack_, host_traffic(c_, model_, stack_), time.compute);
    time.rest = stack_.step_s.value;
    if (c_.schedule.empty()) time.rest += microbatches_ * stack_.microbatch_s.value;
    return time;
  }

  // A forward pass over the sequences of an update. Without a schedule: a pipeline is filled once.
  double forward_time() const {
    const EndsWork ends = ends_work(with_outputs(c_, model_), stack_, shape_);
    const std::vector<KindSeconds> kinds = kind_seconds();
    // A third of what the ends take is forward.
    const double first = seconds(ends.embedding).all() / 3, last = seconds(ends.head).all() / 3;
    const int64_t stages = c_.degrees.pipeline;
    double slowest = 0, all = 0;
    for (int64_t i = 0; i < stages; ++i) {
      double stage = (i == 0 ? first : 0) + (i == stages - 1 ? last : 0);
      const std::vector<double> layers = layers_by_kind(c_, model_, i);
      for (size_t k = 0; k < kinds.size(); ++k) {
        const double forward = kinds[k].forward.all();
        stage += layers[k] * (forward + (c_.zero == 3 ? gathering(mix_.kinds[k], forward) : 0));
      }
      slowest = std::max(slowest, stage);
      all += stage;
    }
    const double hops = stages > 1 ? (number(stages) - 1 + microbatches_) * hop(1) : 0;
    const double slower = waiting_for_slowest(stack_.rank_spread.value, number(c_.gpus), kKnown);
    return slower * (all + (microbatches_ - 1) * slowest) + hops;
  }

 private:
  // Passes through a layer of one kind.
  struct KindSeconds {
    Seconds forward, backward, selective, tiles;
  };
  std::vector<KindSeconds> kind_seconds() const {
    std::vector<KindSeconds> kinds;
    for (const LayerGroup& kind : mix_.kinds) {
      const LayerWork work = layer_work(kind.model, stack_, shape_of(shape_, kind));
      const Seconds tiles = seconds({work.mlp, {}, {}, {}}) * stack_.tiled_mlp_again.value;
      kinds.push_back(
          {seconds(work.forward), seconds(work.backward), seconds(selective_pass(work)), tiles});
    }
    return kinds;
  }
  // The share of a stage's layers whose forward runs again.
  double again(int64_t stage) const {
    const double layers = layers_of(c_, model_, stage);
    return layers > 0 ? recomputed_layers(c_, model_, stage) / layers : 0;
  }
  // Losses of a microbatch, each with a pass through the head.
  double heads() const { return 1 + number(model_.next_token_layers); }

  // What gathering a layer's parameters adds to a pass through it.
  double gathering(const LayerGroup& kind, double pass) const {
    if (replicas_ <= 1) return 0;
    return added(pass_of(parameters_of_layer(c_, kind), shape_.element_bytes), pass);
  }

  // Several microbatches use both directions of the link at once; a single one uses them in turn.
  double copy(Kernel kernel, double bytes) const {
    const double shared = microbatches_ > 1 ? hw_.link.duplex_factor.value : 1;
    return cost_.seconds({kernel, {bytes, 1, 1}, bytes / (stack_.copy_share.value * shared)});
  }

  // A slice's kernels; attention takes an equal part of its time for the whole sequence.
  Pass sliced(Pass slice, const Pass& whole) const {
    for (size_t i = 0; i < slice.kernels.size(); ++i) {
      const Kernel kernel = slice.kernels[i].kernel;
      if (is_product(kernel) || kernel == Kernel::pass) continue;
      slice.kernels[i] = whole.kernels[i];
      slice.kernels[i].repeats /= number(c_.slices);
    }
    return slice;
  }
  double device_seconds(const Pass& pass) const {
    double device = 0;
    for (const Primitive& p : pass.kernels) {
      device += cost_.seconds(p) / share(p) + stack_.kernel_gap_s.value;
    }
    return device;
  }

  // A device runs what the host has issued; whichever is slower sets the pace.
  Seconds seconds(const Pass& pass) const {
    Seconds s;
    const double device = device_seconds(pass);
    // The host issues exchanges, too; an all-reduce is one, of two parts.
    const size_t of_tensor = pass.tensor.size() / (c_.sequence_parallel ? 1 : 2);
    const auto kernels = static_cast<double>(pass.kernels.size() + of_tensor + pass.context.size() +
                                             pass.dispatch.size());
    const double tensor = exchange(pass.tensor), context = exchange(pass.context);
    s.tensor = std::max(tensor - stack_.tensor_hidden.value * device, 0.0);
    s.context = std::max(context - stack_.context_hidden.value * device, 0.0);
    const double dispatch = exchange(pass.dispatch) / stack_.dispatch_share.value;
    s.experts = std::max(dispatch - stack_.dispatch_hidden.value * device, 0.0);
    // Where experts have fixed room, nothing waits for counts.
    const bool counts = pass.experts > 0 && c_.expert_capacity == 0;
    const double wait = counts ? stack_.expert_wait_s.value : 0;
    // Parameters that are not of a layer of the model itself are not gathered module by module.
    const double hooks = c_.zero == 3 && sharers_ > 1 ? stack_.gather_host_s.value : 0;
    const double host =
        kernels * stack_.host_kernel_s.value + hooks + pass.experts * stack_.expert_host_s.value;
    s.compute = std::max(device, host - s.tensor - s.context - s.experts) + wait;
    return s;
  }
  double share(const Primitive& p) const {
    if (p.kernel == Kernel::pass) return stack_.pass_share.value;
    if (is_product(p.kernel)) return stack_.product_share.value;
    // Attention in single precision has no tensor cores either.
    return std::min(1.0, shape_.precision.speed) * stack_.attention_share.value /
           head_cost(p.shape[2]);
  }
  // The cost of a FLOP relative to heads of 128 columns, with which attention was measured: kernels
  // round columns up to 32, and the softmax of a pair costs the same for any number of columns.
  double head_cost(double columns) const {
    const double softmax = stack_.attention_head_cost.value;
    if (softmax == 0) return 1;
    return (std::ceil(columns / 32) * 32 + softmax) / columns / ((128 + softmax) / 128);
  }
  double exchange(const Primitive& p) const {
    const bool between = p.shape[1] * p.shape[2] > number(hw_.devices_per_node);
    const StackTerm& reached =
        p.kernel == Kernel::gather ? stack_.cluster_gather_share : stack_.cluster_exchange_share;
    const double share = stack_.exchange_share.value * (between ? reached.value : 1);
    const double further = p.shape[2] - 1;  // ranks of its group
    return cost_.seconds(p) / share + stack_.exchange_s.value +
           further * stack_.exchange_rank_s.value;
  }
  double exchange(const std::vector<Primitive>& primitives) const {
    return std::accumulate(primitives.begin(), primitives.end(), 0.0,
                           [&](double all, const Primitive& p) { return all + exchange(p); });
  }

  // 1F1B, interleaved v times: a microbatch passes through all stages once before the slowest is
  // always busy and once after, a v-th of a stage at a time (arXiv 2104.04473, section 2.2).
  double bubble(const std::vector<Seconds>& stage, const Seconds& slowest) const {
    const double p = number(c_.degrees.pipeline), v = number(c_.virtual_stages);
    if (p <= 1) return 0;
    double others = -slowest.all();
    for (const Seconds& s : stage) others += s.all();
    const double each = hop(1);
    return others / v + 2 * (p - 1 + microbatches_ * (v - 1)) * each + microbatches_ * 2 * each;
  }
  // The time that one of `slices` slices takes from stage to stage. Each rank of a tensor group
  // sends its part of the activations (section 4.1 there).
  double hop(double slices) const {
    const double bytes = shape_.element_bytes * shape_.tokens() / slices * number(model_.hidden) /
                         number(c_.degrees.tensor);
    const double neighbours = number(c_.gpus) / number(c_.degrees.pipeline);
    return stack_.stage_latency_s.value +
           cost_.seconds({Kernel::exchange, {bytes, neighbours, 2}, bytes}) /
               stack_.message_share.value;
  }

  // The work that selective recomputation repeats: scores of attention, and what the stack adds.
  Pass selective_pass(const LayerWork& layer) const {
    Pass pass{layer.scores, {}, {}, {}};
    const double products = shape_.precision.speed > 1 ? stack_.selective_low_precision.value
                                                       : stack_.selective_products.value;
    for (Primitive p : layer.forward.kernels) {
      p.repeats *= p.kernel == Kernel::pass ? stack_.selective_passes.value
                   : is_product(p.kernel)   ? products
                                            : 0;
      if (p.repeats > 0) pass.kernels.push_back(p);
    }
    // Only the gathers before a tensor group's products, not the sums after them.
    for (size_t i = 0; products > 0 && i < layer.forward.tensor.size(); i += 2) {
      pass.tensor.push_back(layer.forward.tensor[i]);
    }
    return pass;
  }

  // Gradients are summed over the replicas; parameters are gathered if ZeRO shards their states.
  double data(double microbatch_compute) const {
    if (replicas_ <= 1) return 0;
    const double gradients = sum_of(own_, stack_.gradient_bytes.value);
    const double gathered = pass_of(own_, shape_.element_bytes);
    const double all = c_.zero > 0 ? gradients + gathered : 2 * gradients;
    return added(all, microbatch_compute);
  }

  // With sharded gradients (ZeRO 2), or parameters as well (ZeRO 3), each layer has its own
  // exchanges in every microbatch: parameters are gathered during the forward of the layer before,
  // in ZeRO 3 once more in backward, and gradients are summed during the next backward. So a pass
  // hides as much as its own computation is long enough for, and nothing hides the exchanges of the
  // ends. A pipeline would repeat the exchanges for every microbatch of every stage, so it keeps
  // its parameters.
  double data_by_layers(const std::vector<KindSeconds>& kinds) const {
    if (replicas_ <= 1) return 0;
    const bool kept = c_.degrees.pipeline > 1;
    const std::vector<double> layers = layers_by_kind(c_, model_, 0);
    double in_layers = 0;
    for (size_t k = 0; k < kinds.size(); ++k) {
      in_layers += layers[k] * parameters_of_layer(c_, mix_.kinds[k]).all();
    }
    const RankParameters ends{parameters_ - in_layers, 0};
    const double copies = parameters_ * stack_.shard_copy_bytes.value /
                          (hw_.device.memory_bandwidth.value * stack_.pass_share.value);
    const auto microbatch = [&](bool sums) {
      double all = pass_of(ends, shape_.element_bytes) +
                   (sums ? sum_of(ends, stack_.gradient_bytes.value) : 0) + copies;
      for (size_t k = 0; k < kinds.size(); ++k) {
        const RankParameters layer = parameters_of_layer(c_, mix_.kinds[k]);
        const double gather = pass_of(layer, shape_.element_bytes);
        const double regather = c_.zero == 3 && !kept ? gather : 0;
        const double sum = sums ? sum_of(layer, stack_.gradient_bytes.value) : 0;
        const double forward = kinds[k].forward.all();
        const double selected = c_.recompute == Recompute::selective ? kinds[k].selective.all() : 0;
        const double backward = kinds[k].backward.all() + again(0) * forward + selected;
        all += layers[k] * (added(gather, forward) + added(sum + regather, backward));
      }
      return all;
    };
    if (gradients_wait_whole(c_)) return (microbatches_ - 1) * microbatch(false) + microbatch(true);
    return (kept ? 1 : microbatches_) * microbatch(true);
  }
  // After a microbatch, of this many parameters.
  double summing_gradients(double parameters) const {
    return parameters * stack_.gradient_sum_bytes.value /
           (hw_.device.memory_bandwidth.value * stack_.pass_share.value);
  }
  // The time that an exchange adds to a computation that runs at the same time.
  double added(double exchange, double computation) const {
    const double hidden = std::min(exchange, stack_.data_hidden.value * computation);
    return exchange - hidden * (1 - stack_.exchange_toll.value);
  }
  // All-gather or reduce-scatter of parameters over the ranks that share them; experts' are others.
  double pass_of(const RankParameters& p, double bytes) const {
    return pass_over(sharers_, shared_stride(), p.shared * bytes) +
           pass_over(expert_sharers(c_), expert_stride(), p.experts * bytes);
  }
  // Reduce-scatter over these, and the sum of what each then has over the groups that copy states.
  double sum_of(const RankParameters& p, double bytes) const {
    const double copies = number(c_.state_copies), experts = expert_sharers(c_);
    return pass_of(p, bytes) +
           2 * pass_over(copies, shared_stride() * sharers_, p.shared * bytes / sharers_) +
           2 * pass_over(std::min(copies, expert_replicas(c_)), expert_stride() * experts,
                         p.experts * bytes / experts);
  }
  double shared_stride() const { return number(c_.degrees.tensor); }
  double expert_stride() const { return number(c_.degrees.expert * c_.degrees.of_expert()); }
  double pass_over(double ranks, double stride, double bytes) const {
    if (ranks <= 1 || bytes <= 0) return 0;
    const double own = bytes / ranks;
    return exchange({Kernel::gather, {own, stride, ranks}, own * (ranks - 1)});
  }

  const TrainingRun& c_;
  const ModelSpec& model_;
  const Stack& stack_;
  const HardwareProfile& hw_;
  CostModel cost_;
  LayerShape shape_;
  double microbatches_;
  LayerMix mix_;
  RankParameters own_;
  double parameters_, replicas_, sharers_;
};

}  // namespace

RunPipeline run_pipeline(const TrainingRun& run, const ModelSpec& model, const HardwareProfile& hw,
                         const Stack& stack) {
  return run_pipeline(run, model, stack, Run(run, model, hw, stack).microbatch());
}

RunTime run_time(const TrainingRun& run, const ModelSpec& model, const HardwareProfile& hw,
                 const Stack& stack, const RunPipeline* known) {
  return Run(run, model, hw, stack).time(known);
}

double forward_time(const TrainingRun& run, const ModelSpec& model, const HardwareProfile& hw,
                    const Stack& stack) {
  return Run(run, model, hw, stack).forward_time();
}

}  // namespace longspan
