#include "planner/explain/neighbours.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/units.h"

namespace longspan {
namespace {

constexpr int64_t kSmallestTile = 64;

int64_t smallest_prime_factor(int64_t n) {
  for (int64_t f = 2; f * f <= n; ++f) {
    if (n % f == 0) return f;
  }
  return n;
}

// Collects what differs.
class Neighbourhood {
 public:
  Neighbourhood(const Strategy& s, int64_t sequence, bool with_nvme)
      : own_(s), sequence_(sequence), with_nvme_(with_nvme) {}

  std::vector<Neighbour> all() {
    degrees();
    zero();
    overlap();
    chunk();
    block();
    head_groups();
    tier("kv", &Strategy::kv);
    tier("idle", &Strategy::idle);
    count("prefetch_depth", &Strategy::prefetch_depth);
    count("offload_window", &Strategy::offload_window);
    backward_order();
    // The other way round nobody would gain anything.
    add("deterministic", "true", "false", own_.deterministic,
        [](Strategy& s) { s.deterministic = false; });
    saved("saved.layer_input", &Strategy::layer_input, false);
    saved("saved.qkv", &Strategy::qkv, true);
    saved("saved.attention_out", &Strategy::attention_out, true);
    saved("saved.mlp_input", &Strategy::mlp_input, true);
    saved("saved.mlp_inner", &Strategy::mlp_inner, true);
    const Parallel& p = own_.parallel;
    tile("tiles.projection", &Strategy::projection_tile, own_.chunk_tokens / p.ulysses);
    tile("tiles.mlp", &Strategy::mlp_tile, own_.block_tokens / p.ulysses);
    tile("tiles.loss", &Strategy::loss_tile, own_.block_tokens / (p.ulysses * p.tensor));
    state("states.parameters", &Strategy::parameters, false);
    state("states.gradients", &Strategy::gradients, false);
    state("states.optimizer", &Strategy::optimizer, with_nvme_);
    return std::move(found_);
  }

 private:
  template <class Change>
  void add(std::string knob, std::string from, std::string to, bool matters, const Change& change) {
    if (!matters) return;
    Neighbour n{std::move(knob), std::move(from), std::move(to), own_};
    change(n.strategy);
    if (n.strategy != own_) found_.push_back(std::move(n));
  }

  int64_t share() const { return sequence_ / own_.parallel.ring; }
  int64_t chunks() const { return share() / own_.chunk_tokens; }
  bool one_block() const { return own_.block_tokens == share(); }

  // The largest chunk there can be: a ring deals out two to every position.
  int64_t largest_chunk(const Parallel& grid) const {
    return sequence_ / (grid.ring > 1 ? 2 * grid.ring : 1);
  }

  // Blocks of as many chunks as before, or still one.
  void follow(Strategy& s) const {
    const int64_t per_block = own_.block_tokens / own_.chunk_tokens;
    s.block_tokens = one_block() ? sequence_ / s.parallel.ring : per_block * s.chunk_tokens;
  }

  void degrees() {
    struct Degree {
      const char* name;
      int64_t Parallel::*field;
    };
    constexpr std::array<Degree, 4> degrees{{{"data", &Parallel::data},
                                             {"tensor", &Parallel::tensor},
                                             {"ring", &Parallel::ring},
                                             {"ulysses", &Parallel::ulysses}}};
    const Parallel& own = own_.parallel;
    for (const Degree& less : degrees) {
      for (const Degree& more : degrees) {
        const int64_t degree = own.*less.field;
        if (degree == 1 || more.field == less.field) continue;
        for (const int64_t factor : {smallest_prime_factor(degree), degree}) {
          Parallel grid = own;
          grid.*less.field /= factor;
          grid.*more.field *= factor;
          if (grid.tensor > 1 && grid.sequence_ranks() > 1) continue;
          const auto text = [&](const Parallel& p) {
            return fmt::format("{} {} x {} {}", less.name, p.*less.field, more.name, p.*more.field);
          };
          add("parallel", text(own), text(grid), true, [&](Strategy& s) {
            s.parallel = grid;
            if (own_.chunk_tokens == largest_chunk(own)) s.chunk_tokens = largest_chunk(grid);
            follow(s);
          });
          break;
        }
      }
    }
  }

  void zero() {
    const int64_t stage = own_.parallel.zero;
    for (const int64_t other : {stage - 1, stage + 1}) {
      add("parallel.zero", std::to_string(stage), std::to_string(other),
          own_.parallel.replicas() > 1 && other >= 0 && other <= 3,
          [=](Strategy& s) { s.parallel.zero = other; });
    }
  }

  void overlap() {
    const bool own = own_.parallel.overlap;
    const auto text = [](bool on) { return on ? "true" : "false"; };
    add("parallel.overlap", text(own), text(!own), own_.parallel.ranks() > 1,
        [=](Strategy& s) { s.parallel.overlap = !own; });
  }

  void backward_order() {
    for (const BackwardOrder other : {BackwardOrder::q_outer, BackwardOrder::kv_outer}) {
      add("backward_order", std::string(name_of(own_.backward_order)), std::string(name_of(other)),
          chunks() > 1, [=](Strategy& s) { s.backward_order = other; });
    }
  }

  void chunk() {
    const int64_t own = own_.chunk_tokens;
    const int64_t more = std::max<int64_t>(1, largest_chunk(own_.parallel) / own);
    for (const int64_t other :
         {own / smallest_prime_factor(own), own * smallest_prime_factor(more)}) {
      add("chunk_tokens", format_tokens(own), format_tokens(other), other != own, [&](Strategy& s) {
        s.chunk_tokens = other;
        follow(s);
      });
    }
  }

  void block() {
    const int64_t own = own_.block_tokens, chunk = own_.chunk_tokens;
    std::vector<int64_t> others = {chunk, own / smallest_prime_factor(own / chunk),
                                   own * smallest_prime_factor(share() / own), share()};
    others.erase(std::unique(others.begin(), others.end()), others.end());
    for (const int64_t other : others) {
      add("block_tokens", format_tokens(own), format_tokens(other), chunks() > 1,
          [=](Strategy& s) { s.block_tokens = other; });
    }
  }

  void head_groups() {
    const int64_t own = own_.head_groups;
    const bool whole = own_.chunk_tokens == sequence_ && own_.parallel.tensor == 1;
    for (const int64_t other : {own / smallest_prime_factor(own), own * 2}) {
      add("head_groups", std::to_string(own), std::to_string(other), whole,
          [=](Strategy& s) { s.head_groups = other; });
    }
  }

  void count(const char* name, int64_t Strategy::*field) {
    const int64_t own = own_.*field;
    for (const int64_t other : {own - 1, own + 1}) {
      add(name, std::to_string(own), std::to_string(other), other >= 0 && other <= 64,
          [=](Strategy& s) { s.*field = other; });
    }
  }

  void tier(const char* name, Tier Strategy::*field) { state(name, field, false, chunks() > 1); }

  void state(const char* name, Tier Strategy::*field, bool may_file, bool matters = true) {
    for (const Tier other : {Tier::device, Tier::host, Tier::nvme}) {
      add(name, std::string(name_of(own_.*field)), std::string(name_of(other)),
          matters && (other != Tier::nvme || may_file), [=](Strategy& s) { s.*field = other; });
    }
  }

  void saved(const char* name, SavedPolicy Strategy::*field, bool may_recompute) {
    for (const Saved other : {Saved::keep, Saved::recompute, Saved::host, Saved::nvme}) {
      const bool may =
          (other != Saved::recompute || may_recompute) && (other != Saved::nvme || with_nvme_);
      add(name, std::string(name_of((own_.*field).where)), std::string(name_of(other)), may,
          [=](Strategy& s) { (s.*field).where = other; });
    }
  }

  // 0 rows, and as many as there are, are all of them.
  void tile(const char* name, int64_t Strategy::*field, int64_t rows) {
    const int64_t own = own_.*field > 0 && own_.*field < rows ? own_.*field : 0;
    const auto text = [](int64_t t) { return t == 0 ? "all rows" : format_tokens(t); };
    const int64_t half = (own == 0 ? rows : own) / 2;
    const int64_t twice = 2 * own < rows ? 2 * own : 0;
    add(name, text(own), text(half), half >= kSmallestTile, [=](Strategy& s) { s.*field = half; });
    add(name, text(own), text(twice), own != 0, [=](Strategy& s) { s.*field = twice; });
  }

  const Strategy& own_;
  int64_t sequence_;
  bool with_nvme_;
  std::vector<Neighbour> found_;
};

}  // namespace

std::vector<Neighbour> neighbours(const Strategy& strategy, int64_t sequence, bool with_nvme) {
  return Neighbourhood(strategy, sequence, with_nvme).all();
}

}  // namespace longspan
