#include "planner/search/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/units.h"

namespace longspan {
namespace {

constexpr size_t kFewestLines = 3;  // lines of one question's front: its ends

// Runs the searches of one sweep, one after another: at most `count`, of which `planned` end with a
// plan.
class Questions {
 public:
  Questions(const ModelSpec& model, const HardwareProfile& hw, const SweepOptions& options,
            size_t count, size_t planned, const Progress& progress)
      : model_(model), hw_(hw), options_(options), count_(count), progress_(progress) {
    lines_ = options.search.front_lines;
    if (!options.front_of_each) omit_front(options_.search);
    if (options_.search.front_lines > 0) {
      options_.search.front_lines = std::max(kFewestLines, lines_ / planned);
    }
  }

  /// Searches for a plan; returns whether there is one.
  bool ask(int64_t sequence, int64_t devices) {
    Answer& answer = result_.answers.emplace_back(Answer{sequence, devices, {}, ""});
    try {
      const HardwareProfile used = with_devices(hw_, devices);
      if (options_.strategy == "auto") {
        SearchResult found = search(model_, used, sequence, options_.search, share_of_progress());
        result_.considered += found.considered;
        result_.evaluated += found.evaluated;
        for (Plan& plan : found.pareto) plans_.push_back({std::move(plan), sequence});
        answer.plan = std::move(found.best);
        answer.alternative = std::move(found.alternative);
        answer.no_alternative_reason = std::move(found.no_alternative_reason);
        answer.gap = found.gap;
        if (answer.alternative) complete(*answer.alternative);
      } else {
        answer.plan = plan_preset(model_, used, options_.strategy, sequence, options_.search);
      }
      plans_.push_back({*answer.plan, sequence});
      complete(*answer.plan);
      return true;
    } catch (const Error& error) {
      // If all are refused, the last error is thrown, as it had most devices. no_fit is preferred
      // to bad_input, as it says more.
      if (error.kind() == ErrorKind::failed) throw;
      if (!error_ || error_->kind() == ErrorKind::bad_input || error.kind() == ErrorKind::no_fit) {
        error_ = error;
      }
      answer.refusal = error.what();
      return false;
    }
  }

  Sweep finish() {
    const auto better = [&](const Answer& one, const Answer& other) {
      if (one.sequence != other.sequence) return one.sequence > other.sequence;
      const Prediction &a = one.plan->predicted, &b = other.plan->predicted;
      if (options_.search.objective == Objective::throughput) {
        return a.tokens_per_second > b.tokens_per_second;
      }
      const size_t tier = options_.search.objective == Objective::host_memory ? 1 : 0;
      return a.peak_bytes[tier] < b.peak_bytes[tier];
    };
    const Answer* best = nullptr;
    for (const Answer& answer : result_.answers) {
      if (answer.plan && (best == nullptr || better(answer, *best))) best = &answer;
    }
    if (best == nullptr) throw *error_;
    result_.best = *best->plan;
    for (Planned& planned : plans_) complete(planned.plan);
    if (lines_ > 0 && (options_.strategy == "auto" || result_.answers.size() > 1)) {
      result_.front = front_of(plans_, lines_);
    }
    result_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    return std::move(result_);
  }

 private:
  // A search fills in only time and memory; rate and MFU follow from them.
  static void complete(Plan& plan) {
    plan.predicted = prediction_of(plan, plan.predicted.step_seconds, plan.predicted.peak_bytes);
  }

  Progress share_of_progress() const {
    if (!progress_) return {};
    constexpr int64_t kParts = 1000;
    const auto asked = static_cast<int64_t>(result_.answers.size()) - 1;
    return [this, asked](int64_t done, int64_t total) {
      progress_(asked * kParts + kParts * done / std::max<int64_t>(1, total),
                static_cast<int64_t>(count_) * kParts);
    };
  }

  const ModelSpec& model_;
  const HardwareProfile& hw_;
  SweepOptions options_;
  size_t count_;
  const Progress& progress_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  size_t lines_;
  std::vector<Planned> plans_;  // of all searches
  std::optional<Error> error_;
  Sweep result_;
};

double rate_of(const Answer& answer) { return answer.plan->predicted.tokens_per_second; }

}  // namespace

std::vector<int64_t> device_counts(const HardwareProfile& hw, int64_t most) {
  if (most < 1 || most > hw.devices()) {
    throw bad_input(
        "{} has {} device{}: expected at most that many, got {}; counts before the "
        "name make more (8x{})",
        hw.name, hw.devices(), hw.devices() == 1 ? "" : "s", most, hw.name);
  }
  std::vector<int64_t> counts;
  for (int64_t n = 1; n < hw.devices_per_node; ++n) {
    if (hw.devices_per_node % n == 0 && n <= most) counts.push_back(n);
  }
  for (int64_t n = hw.devices_per_node; n <= most; n += hw.devices_per_node) counts.push_back(n);
  return counts;
}

std::vector<int64_t> doubling(const std::vector<int64_t>& counts) {
  std::vector<int64_t> chosen;
  for (const int64_t count : counts) {
    if (chosen.empty() || count >= 2 * chosen.back() || count == counts.back()) {
      chosen.push_back(count);
    }
  }
  return chosen;
}

Sweep sweep(const ModelSpec& model, const HardwareProfile& hw,
            const std::vector<int64_t>& sequences, const std::vector<int64_t>& devices,
            const SweepOptions& options, const Progress& progress) {
  const size_t all = sequences.size() * devices.size();
  Questions questions(model, hw, options, all, all, progress);
  for (const int64_t sequence : sequences) {
    for (const int64_t count : devices) questions.ask(sequence, count);
  }
  return questions.finish();
}

Sweep fewest_devices(const ModelSpec& model, const HardwareProfile& hw, int64_t sequence,
                     const std::vector<int64_t>& devices, const SweepOptions& options,
                     const Progress& progress) {
  Questions questions(model, hw, options, devices.size(), 1, progress);
  for (const int64_t count : devices) {
    if (questions.ask(sequence, count)) break;
  }
  return questions.finish();
}

const Answer* answer_of_best(const Sweep& sweep) {
  for (const Answer& answer : sweep.answers) {
    if (answer.plan == sweep.best) return &answer;
  }
  return nullptr;
}

std::string why_so_many(const Sweep& sweep) {
  std::vector<const Answer*> of_length;
  size_t own = 0;
  const Answer* best = answer_of_best(sweep);
  if (best == nullptr) return "";
  for (const Answer& answer : sweep.answers) {
    if (answer.sequence != best->sequence) continue;
    if (answer.devices == best->devices) own = of_length.size();
    of_length.push_back(&answer);
  }
  if (of_length.size() < 2) return "";
  const auto compared = [&](const Answer& other) {
    if (!other.plan) return fmt::format("{}: {}", other.devices, other.refusal);
    const double ratio = rate_of(other) / rate_of(*of_length[own]);
    return fmt::format(
        "{} {} {:.2f} times the tokens/s, each device {:.2f} times", other.devices,
        other.devices == 1 ? "gives" : "give", ratio,
        ratio * static_cast<double>(of_length[own]->devices) / static_cast<double>(other.devices));
  };
  std::string text = fmt::format("{} devices", of_length[own]->devices);
  if (own + 1 < of_length.size()) text += "; " + compared(*of_length[own + 1]);
  return own == 0 ? text : text + "; " + compared(*of_length[own - 1]);
}

}  // namespace longspan
