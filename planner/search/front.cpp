#include "planner/search/front.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/units.h"

namespace longspan {
namespace {

constexpr double kSlack = 0.02;  // smaller savings do not justify a line
constexpr int kHost = static_cast<int>(Tier::host), kDevice = static_cast<int>(Tier::device);

int64_t devices_of(const Plan& plan) { return plan.hardware.devices(); }
int64_t bytes_of(const Plan& plan, int tier) { return plan.predicted.peak_bytes[tier]; }

// The text of a relevant saving compared with `than`, such as ", host -60 %"; else empty.
std::string saving(const char* what, int64_t bytes, int64_t than) {
  const double change = static_cast<double>(bytes) / std::max(1.0, static_cast<double>(than)) - 1;
  return change > -kSlack ? "" : fmt::format(", {} {:.0f} %", what, 100 * change);
}

struct Row {
  const Planned* planned;
  int rank = 2;  // 0: the fastest of its length and devices; 1: the least memory there
  std::string because;
};

void add_reason(Row& row, const std::string& reason) {
  row.because += (row.because.empty() ? "" : ", ") + reason;
}

// Sets the reasons of the rows of one length and number of devices, which are sorted by time.
void name_reasons(std::vector<Row>::iterator begin, std::vector<Row>::iterator end) {
  const Planned& fastest = *begin->planned;
  begin->rank = 0;
  if (end - begin == 1) return;
  for (const auto& [tier, reason] :
       {std::pair{kHost, "least host memory"}, std::pair{kDevice, "least device memory"}}) {
    const auto least = std::min_element(begin, end, [tier = tier](const Row& a, const Row& b) {
      return bytes_of(a.planned->plan, tier) < bytes_of(b.planned->plan, tier);
    });
    least->rank = std::min(least->rank, 1);
    add_reason(*least, reason);
  }
  for (auto row = begin + 1; row != end; ++row) {
    const double slower = costs_of(*row->planned)[0] / costs_of(fastest)[0] - 1;
    add_reason(*row, fmt::format("{:.1f} % slower{}{}", 100 * slower,
                                 saving("host", bytes_of(row->planned->plan, kHost),
                                        bytes_of(fastest.plan, kHost)),
                                 saving("device", bytes_of(row->planned->plan, kDevice),
                                        bytes_of(fastest.plan, kDevice))));
  }
}

// Adds to every fastest plan its length and number of devices, and the extreme that it reaches.
void name_extremes(std::vector<Row>& rows) {
  if (rows.empty()) return;
  const auto [shortest, longest] = std::minmax_element(
      rows.begin(), rows.end(),
      [](const Row& a, const Row& b) { return a.planned->asked < b.planned->asked; });
  const auto [fewest, most] =
      std::minmax_element(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
        return devices_of(a.planned->plan) < devices_of(b.planned->plan);
      });
  const int64_t long_tokens = longest->planned->asked, few = devices_of(fewest->planned->plan);
  const bool lengths = shortest->planned->asked != long_tokens;
  const bool counts = few != devices_of(most->planned->plan);
  for (Row& row : rows) {
    if (row.rank != 0) continue;
    std::string text = "fastest";
    if (lengths) text += fmt::format(" at {}", format_tokens(row.planned->asked));
    if (counts) text += fmt::format(" on {}", devices_of(row.planned->plan));
    if (lengths && row.planned->asked == long_tokens) text += ", longest";
    if (counts && devices_of(row.planned->plan) == few) text += ", fewest GPUs";
    row.because = text + (row.because.empty() ? "" : ", ") + row.because;
  }
}

}  // namespace

std::vector<size_t> non_dominated(const std::vector<Costs>& rows, double slack) {
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // Only earlier rows in this order can dominate a row, and it suffices to compare with kept ones.
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return rows[a] < rows[b]; });
  std::vector<size_t> kept;
  for (const size_t i : order) {
    const bool beaten = std::any_of(kept.begin(), kept.end(), [&](size_t k) {
      return std::equal(rows[k].begin(), rows[k].end(), rows[i].begin(),
                        [&](double a, double b) { return a <= (1 + slack) * b; });
    });
    if (!beaten) kept.push_back(i);
  }
  return kept;
}

bool beaten_by_mixture(const Costs& row, const std::vector<Costs>& rows) {
  for (const Costs& a : rows) {
    for (const Costs& b : rows) {
      // The range of shares of a with which the mixture costs no more, cost by cost.
      double least = 0, most = 1;
      for (size_t c = 0; c < row.size(); ++c) {
        const double slope = a[c] - b[c], room = row[c] - b[c];
        if (slope > 0) {
          most = std::min(most, room / slope);
        } else if (slope < 0) {
          least = std::max(least, room / slope);
        } else if (room < 0) {
          most = -1;
        }
      }
      if (least <= most && a != row && b != row) return true;
    }
  }
  return false;
}

Costs costs_of(const Planned& planned) {
  const Plan& plan = planned.plan;
  const auto asked = static_cast<double>(planned.asked);
  return {seconds_per_sequence(plan) / asked, 1 / asked, static_cast<double>(devices_of(plan)),
          static_cast<double>(bytes_of(plan, kHost)), static_cast<double>(bytes_of(plan, kDevice))};
}

std::vector<FrontPoint> front_of(const std::vector<Planned>& all, size_t lines) {
  std::vector<Costs> costs;
  for (const Planned& planned : all) costs.push_back(costs_of(planned));
  std::vector<Row> rows;
  for (const size_t i : non_dominated(costs, kSlack)) rows.push_back({&all[i], 2, ""});
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    const auto key = [](const Row& row) {
      return std::tuple(row.planned->asked, devices_of(row.planned->plan),
                        costs_of(*row.planned)[0]);
    };
    return key(a) < key(b);
  });
  const auto same_question = [](const Row& a, const Row& b) {
    return a.planned->asked == b.planned->asked &&
           devices_of(a.planned->plan) == devices_of(b.planned->plan);
  };
  for (auto begin = rows.begin(); begin != rows.end();) {
    const auto end = std::find_if(begin, rows.end(),
                                  [&](const Row& row) { return !same_question(row, *begin); });
    name_reasons(begin, end);
    begin = end;
  }
  name_extremes(rows);

  // Drops the least important rows, from the end.
  for (int rank = 2; rank > 0; --rank) {
    for (size_t i = rows.size(); i-- > 0 && rows.size() > lines;) {
      if (rows[i].rank == rank) rows.erase(rows.begin() + static_cast<int64_t>(i));
    }
  }
  std::vector<FrontPoint> front;
  for (const Row& row : rows) front.push_back({*row.planned, row.because});
  return front;
}

}  // namespace longspan
