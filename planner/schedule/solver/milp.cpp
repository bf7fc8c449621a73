#include "planner/schedule/solver/milp.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace longspan {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::max();  // COIN-OR's infinity

}  // namespace

int32_t Milp::add_number(double lower, double upper, double price) {
  columns.push_back({lower, upper, price, false});
  return static_cast<int32_t>(columns.size()) - 1;
}

int32_t Milp::add_whole(double lower, double upper, double price) {
  columns.push_back({lower, upper, price, true});
  return static_cast<int32_t>(columns.size()) - 1;
}

void Milp::at_least(double lower, std::vector<Term> terms) {
  rows.push_back({lower, kInfinity, std::move(terms)});
}

void Milp::at_most(double upper, std::vector<Term> terms) {
  rows.push_back({-kInfinity, upper, std::move(terms)});
}

void Milp::equal(double value, std::vector<Term> terms) {
  rows.push_back({value, value, std::move(terms)});
}

int64_t Milp::whole_columns() const {
  return std::count_if(columns.begin(), columns.end(), [](const Column& c) { return c.whole; });
}

}  // namespace longspan
