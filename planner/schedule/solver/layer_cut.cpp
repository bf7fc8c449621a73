#include "planner/schedule/solver/layer_cut.h"

#include <limits>

#include "planner/schedule/solver/cut_line.h"

namespace longspan {
namespace {

struct Sums {
  std::vector<double> time = {0};
  std::vector<int64_t> activations = {0}, resident = {0};

  explicit Sums(const std::vector<LayerCosts>& layers) {
    for (const LayerCosts& layer : layers) {
      time.push_back(time.back() + layer.forward + layer.input + layer.weight);
      activations.push_back(activations.back() + layer.activations);
      resident.push_back(resident.back() + layer.resident);
    }
  }
};

}  // namespace

std::vector<int64_t> cut_layers(const std::vector<LayerCosts>& layers, int32_t stages,
                                int64_t memory_limit, const std::vector<int64_t>& in_flight) {
  const Sums sums(layers);
  return cut_line(static_cast<int64_t>(layers.size()), stages, Smallest::dearest,
                  [&](int64_t stage, int64_t begin, int64_t end) {
                    const int64_t held =
                        sums.resident[end] - sums.resident[begin] +
                        in_flight[stage] * (sums.activations[end] - sums.activations[begin]);
                    if (memory_limit > 0 && held > memory_limit) {
                      return std::numeric_limits<double>::infinity();
                    }
                    return sums.time[end] - sums.time[begin];
                  });
}

ScheduleCosts costs_of_stages(const std::vector<LayerCosts>& layers,
                              const std::vector<int64_t>& ends, double communication) {
  ScheduleCosts costs;
  costs.times.clear();
  costs.memory.clear();
  costs.communication = communication;
  int64_t begin = 0;
  for (const int64_t end : ends) {
    StageTimes times{.forward = 0, .input = 0, .weight = 0};
    StageMemory memory{.activations = 0, .for_weights = 0};
    for (int64_t i = begin; i < end; ++i) {
      times.forward += layers[i].forward;
      times.input += layers[i].input;
      times.weight += layers[i].weight;
      memory.activations += layers[i].activations;
      memory.for_weights += layers[i].for_weights;
    }
    times.recompute = times.forward;
    costs.times.push_back(times);
    costs.memory.push_back(memory);
    begin = end;
  }
  return costs;
}

std::vector<int64_t> resident_of_stages(const std::vector<LayerCosts>& layers,
                                        const std::vector<int64_t>& ends) {
  const Sums sums(layers);
  std::vector<int64_t> resident;
  int64_t begin = 0;
  for (const int64_t end : ends) {
    resident.push_back(sums.resident[end] - sums.resident[begin]);
    begin = end;
  }
  return resident;
}

}  // namespace longspan
