#include "planner/pipeline/rank_program.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "planner/pipeline/shared_messages.h"
#include "planner/pipeline/slices.h"
#include "planner/schedule/attention_shares.h"
#include "planner/schedule/share_passes.h"
#include "planner/schedule/timing.h"
#include "planner/strategy/slice_lengths.h"

namespace longspan {
namespace {

// The same lists; of actions that a rank runs as one, a program has one after the other.
Schedule without_pairs(Schedule schedule) {
  for (std::vector<Action>& actions : schedule.ranks) {
    for (Action& action : actions) action.with_next = false;
  }
  return schedule;
}

// An action takes one unit of time, copies take none.
ScheduleCosts costs_of_order() {
  ScheduleCosts costs = unit_costs();
  costs.times[0].offload = costs.times[0].reload = 0;
  return costs;
}

constexpr double kEnd = std::numeric_limits<double>::infinity();

// The times at which actions start if ranks that share attention meet in one unit of time.
std::vector<double> starts_of_meetings(const Schedule& schedule) {
  std::vector<double> starts;
  for (const std::vector<double>& of_rank : meeting_times(schedule)) {
    starts.insert(starts.end(), of_rank.begin(), of_rank.end());
  }
  return starts;
}

// The lists of all ranks with their messages.
class WithMessages {
 public:
  WithMessages(const Schedule& schedule, bool shares_attention)
      : schedule_(with_share_passes(without_pairs(schedule))),
        meshes_(schedule.ranks_of_stages()),
        linked_(link(schedule_)),
        timing_(simulate(schedule_, linked_, costs_of_order())),
        action_starts_(shares_attention ? starts_of_meetings(schedule_) : timing_.starts),
        starts_(2 * static_cast<size_t>(schedule.all_stages()) *
                static_cast<size_t>(schedule.microbatches) * static_cast<size_t>(schedule.slices)) {
    for (size_t i = 0; i < linked_.actions.size(); ++i) {
      const Action& action = linked_.actions[i];
      if (passes_on(action)) starts_[index_of(action)] = action_starts_[i];
    }
  }

  /// A rank's list, and the ends of its messages of a cut vocabulary.
  RankOfPipeline list(size_t rank) const {
    struct Sent {
      double received;
      Action wait;
    };
    RankOfPipeline own;
    std::vector<Action>& result = own.actions;
    std::vector<Sent> sent;  // in the order of sending
    const std::vector<SharedMessage> shared =
        shared_messages(schedule_, linked_, timing_, static_cast<int32_t>(rank));
    auto next = shared.begin();
    // These waits come before RECV, so what they wait for is of an earlier time.
    const auto end_shared = [&](double time) {
      for (; next != shared.end() && next->received < time; ++next) {
        own.sent.push_back({result.size(), next->what, next->microbatch});
      }
    };
    const auto wait_until = [&](double time) {
      for (auto it = sent.begin(); it != sent.end();) {
        if (it->received <= time) {
          result.push_back(it->wait);
          it = sent.erase(it);
        } else {
          ++it;
        }
      }
    };
    const auto first = static_cast<size_t>(linked_.first_of_rank[rank]);
    const std::vector<Action>& actions = schedule_.ranks[rank];
    for (size_t i = 0; i < actions.size(); ++i) {
      const Action& action = actions[i];
      const double start = action.kind == ActionKind::optimizer ? kEnd : action_starts_[first + i];
      end_shared(start);
      if (neighbour(action, -1)) {
        result.push_back(named(action, ActionKind::recv_forward, ActionKind::recv_backward));
      }
      if (is_compute(action.kind) || action.kind == ActionKind::optimizer) wait_until(start);
      result.push_back(action);
      if (const std::optional<Action> receiver = neighbour(action, 1)) {
        result.push_back(named(action, ActionKind::send_forward, ActionKind::send_backward));
        sent.push_back({starts_[index_of(*receiver)], named(action, ActionKind::wait_send_forward,
                                                            ActionKind::wait_send_backward)});
      }
    }
    end_shared(kEnd);
    wait_until(kEnd);
    if (result.empty() || result.back().kind != ActionKind::optimizer) {
      result.push_back({ActionKind::optimizer});
    }
    return own;
  }

 private:
  // Whether the action takes a residual or its gradient from a neighbour and passes another on.
  static bool passes_on(const Action& action) {
    return is_forward(action) || action.kind == ActionKind::backward ||
           action.kind == ActionKind::backward_input;
  }
  static bool is_forward(const Action& action) { return action.kind == ActionKind::forward; }
  static Action named(Action action, ActionKind forward, ActionKind backward) {
    action.kind = is_forward(action) ? forward : backward;
    return action;
  }
  size_t index_of(const Action& action) const {
    const auto at =
        (static_cast<size_t>(action.stage) * static_cast<size_t>(schedule_.microbatches) +
         static_cast<size_t>(action.microbatch)) *
            static_cast<size_t>(schedule_.slices) +
        static_cast<size_t>(action.slice);
    return 2 * at + (is_forward(action) ? 0 : 1);
  }

  // The action on another rank that takes what this one passes on (1), or passes on what this one
  // takes (-1).
  std::optional<Action> neighbour(const Action& action, int direction) const {
    if (!passes_on(action)) return std::nullopt;
    const int step = is_forward(action) ? direction : -direction;
    if (step > 0 ? schedule_.is_last(action.stage) : schedule_.is_first(action.stage)) {
      return std::nullopt;
    }
    Action other = action;
    other.stage += step;
    if (meshes_[other.stage] == meshes_[action.stage]) return std::nullopt;
    return other;
  }

  Schedule schedule_;
  std::vector<int32_t> meshes_;  // by stage
  LinkedActions linked_;
  ScheduleTiming timing_;
  std::vector<double> action_starts_;
  std::vector<double> starts_;  // of actions that pass something on, by index_of()
};

// Adds the lots of shared attention to the work of both of their ranks.
void share_attention(const Schedule& schedule, const std::vector<int64_t>& layers,
                     std::vector<RankProgram>& programs) {
  for (const AttentionShare& share : attention_shares(schedule)) {
    const int64_t common = std::min(layers[static_cast<size_t>(share.from.stage)],
                                    layers[static_cast<size_t>(share.to.stage)]);
    const auto add = [&](int32_t rank, const Action& own, bool gives, int32_t other) {
      programs[static_cast<size_t>(rank)].rank.shared.push_back(
          {own, gives, other, share.from.slice, share.first, share.slices, common});
    };
    add(share.from_rank, share.from, true, share.to_rank);
    add(share.to_rank, share.to, false, share.from_rank);
  }
}

}  // namespace

std::vector<RankProgram> rank_programs(const StepRequest& request, const Schedule& schedule) {
  const std::vector<int64_t> layers =
      layers_of_stages(request.model, request.strategy.parallel.pipeline, request.sequence);
  const std::vector<int32_t> meshes = schedule.ranks_of_stages();
  const bool shares = ranks_that_share(request.strategy.parallel.pipeline) > 0;
  const WithMessages lists(schedule, shares);
  std::vector<RankProgram> programs;
  const std::vector<int64_t> slice_tokens =
      request.strategy.parallel.pipeline.slices > 1
          ? slice_lengths(request.model, request.strategy, request.sequence)
          : std::vector<int64_t>{};
  int64_t levels = 1, border = 0;
  for (const int64_t count : layers) {
    border += count;
    levels = std::max(levels, static_cast<int64_t>(shares_before(request.model, border).size()));
  }
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    RankProgram& program = programs.emplace_back(RankProgram{request, lists.list(rank)});
    if (!schedule.offloaded_shares.empty()) {
      for (const Action& action : program.rank.actions) {
        program.rank.shares.push_back(has_microbatch(action.kind) ? schedule.offloaded_share(action)
                                                                  : 1);
      }
    }
    program.rank.slice_tokens = slice_tokens;
    program.rank.message_levels = levels;
    StepRequest& own = program.request;
    const Pipeline& all = request.strategy.parallel.pipeline;
    const int64_t slices = all.slices;
    own.strategy.parallel.pipeline = {.slices = slices, .equal_work = all.equal_work};
    own.strategy.block_tokens = std::min(own.strategy.block_tokens, own.sequence / slices);
    own.strategy.chunk_tokens = std::min(own.strategy.chunk_tokens, own.sequence / slices);
    own.boundary = {false, false};
    own.mesh = static_cast<int64_t>(rank);
    own.meshes = static_cast<int64_t>(schedule.ranks.size());
    if (cuts_vocabulary(schedule)) {
      own.vocabulary = {vocabulary_share(request.model, own.mesh, own.meshes), meshes.front(),
                        meshes.back(), schedule.input_gradient_in_t};
      own.model = share_model(request.model, own.mesh, own.meshes);
    }
    own.model.runs.clear();
    int first = 0;
    int64_t in_model = 0;
    for (int32_t number = 0; number < schedule.all_stages(); ++number) {
      const int64_t count = layers[static_cast<size_t>(number)];
      if (meshes[number] == static_cast<int32_t>(rank)) {
        StageLayers stage{number,
                          first,
                          first + static_cast<int>(count),
                          {schedule.is_first(number), schedule.is_last(number)},
                          in_model};
        if (!stage.boundary.has_embedding) stage.before = meshes[number - 1];
        if (!stage.boundary.has_loss) stage.after = meshes[number + 1];
        stage.enters = shares_before(request.model, in_model);
        stage.leaves = shares_before(request.model, in_model + count);
        if (!request.model.uniform()) {
          const auto runs = runs_between(request.model, in_model, in_model + count);
          own.model.runs.insert(own.model.runs.end(), runs.begin(), runs.end());
        }
        own.boundary.has_embedding |= stage.boundary.has_embedding;
        own.boundary.has_loss |= stage.boundary.has_loss;
        first = stage.end;
        program.rank.stages.push_back(stage);
      }
      in_model += count;
    }
    own.model.layers = first;
  }
  if (shares && request.model.attention) share_attention(schedule, layers, programs);
  return programs;
}

Program program_of_rank(const StepRequest& request, const Schedule& schedule, int64_t rank) {
  const int64_t of_mesh = request.strategy.parallel.stage_ranks();
  RankProgram own = std::move(rank_programs(request, schedule)[rank / of_mesh]);
  own.request.rank = rank % of_mesh;
  return build_program(own.request, own.rank);
}

}  // namespace longspan
