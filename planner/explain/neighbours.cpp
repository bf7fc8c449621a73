#include "planner/explain/neighbours.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"
#include "planner/strategy/knobs.h"

namespace longspan {
namespace {

constexpr int64_t kSmallestTile = 64;

int64_t smallest_prime_factor(int64_t n) {
  for (int64_t f = 2; f * f <= n; ++f) {
    if (n % f == 0) return f;
  }
  return n;
}

// Collects the neighbours.
class Neighbourhood {
 public:
  Neighbourhood(const Strategy& s, int64_t sequence, bool with_nvme)
      : own_(s), sequence_(sequence), with_nvme_(with_nvme) {}

  std::vector<Neighbour> all() {
    for (const KnobRow& row : knob_rows()) {
      if (row.matters == nullptr || row.matters(own_, sequence_)) turn(row);
    }
    return std::move(found_);
  }

 private:
  void turn(const KnobRow& row) {
    switch (row.turn) {
      case Turn::words:
        return words(row);
      case Turn::off:
        return to(row, 0);
      case Turn::step:
        to(row, row.at.get(own_) - 1);
        return to(row, row.at.get(own_) + 1);
      case Turn::trade:
        return trade(row);
      case Turn::chunk:
        return chunk(row);
      case Turn::block:
        return block(row);
      case Turn::groups:
        to(row, row.at.get(own_) / smallest_prime_factor(row.at.get(own_)));
        return to(row, row.at.get(own_) * 2);
      case Turn::fixed:
        return;
      case Turn::tile:
        return tile(row);
    }
  }

  template <class Change>
  void add(std::string_view knob, std::string from, std::string to, const Change& change) {
    Neighbour n{std::string(knob), std::move(from), std::move(to), own_};
    change(n.strategy);
    if (n.strategy != own_) found_.push_back(std::move(n));
  }

  void to(const KnobRow& row, int64_t value) {
    if (!row.takes(value)) return;
    add(row.key, text_of(row, row.at.get(own_)), text_of(row, value),
        [&](Strategy& s) { row.at.set(s, value); });
  }

  void words(const KnobRow& row) {
    for (int64_t value = row.least; value <= row.most; ++value) {
      if (with_nvme_ || text_of(row, value) != "nvme") to(row, value);
    }
  }

  int64_t share() const { return sequence_ / own_.parallel.ring; }
  bool one_block() const { return own_.block_tokens == share(); }

  // The largest possible chunk: a ring gives two chunks to every position.
  int64_t largest_chunk(const ParallelLayout& mesh) const {
    return sequence_ / (mesh.ring > 1 ? 2 * mesh.ring : 1);
  }

  // Keeps the number of chunks in a block, or the single block.
  void follow(Strategy& s) const {
    const int64_t per_block = own_.block_tokens / own_.chunk_tokens;
    s.block_tokens = one_block() ? sequence_ / s.parallel.ring : per_block * s.chunk_tokens;
    follow_blocks(s);
  }
  // Keeps slices of one stage that are blocks.
  void follow_blocks(Strategy& s) const {
    const int64_t blocks = share() / own_.block_tokens, slices = own_.parallel.pipeline.slices;
    if (own_.parallel.has_pipeline() || slices == 1 || slices != blocks) return;
    s.parallel.pipeline.slices = std::max<int64_t>(1, sequence_ / s.block_tokens);
  }

  void trade(const KnobRow& less) {
    const int64_t degree = less.at.get(own_);
    if (degree == 1) return;
    const ParallelLayout& own = own_.parallel;
    for (const KnobRow& more : knob_rows()) {
      if (more.turn != Turn::trade || more.key == less.key) continue;
      for (const int64_t factor : {smallest_prime_factor(degree), degree}) {
        Strategy traded = own_;
        less.at.set(traded, degree / factor);
        more.at.set(traded, more.at.get(own_) * factor);
        const ParallelLayout& mesh = traded.parallel;
        if (mesh.tensor > 1 && mesh.sequence_ranks() > 1) continue;
        const auto text = [&](const Strategy& s) {
          return fmt::format("{} {} x {} {}", less.name(), less.at.get(s), more.name(),
                             more.at.get(s));
        };
        add(less.group(), text(own_), text(traded), [&](Strategy& s) {
          s.parallel = mesh;
          if (own_.chunk_tokens == largest_chunk(own)) s.chunk_tokens = largest_chunk(mesh);
          follow(s);
        });
        break;
      }
    }
  }

  void chunk(const KnobRow& row) {
    const int64_t own = own_.chunk_tokens;
    const int64_t more = std::max<int64_t>(1, largest_chunk(own_.parallel) / own);
    for (const int64_t other :
         {own / smallest_prime_factor(own), own * smallest_prime_factor(more)}) {
      if (other == own) continue;
      add(row.key, format_tokens(own), format_tokens(other), [&](Strategy& s) {
        s.chunk_tokens = other;
        follow(s);
      });
    }
  }

  void block(const KnobRow& row) {
    const int64_t own = own_.block_tokens, chunk = own_.chunk_tokens;
    std::vector<int64_t> others = {chunk, own / smallest_prime_factor(own / chunk),
                                   own * smallest_prime_factor(share() / own), share()};
    others.erase(std::unique(others.begin(), others.end()), others.end());
    for (const int64_t other : others) {
      add(row.key, format_tokens(own), format_tokens(other), [&](Strategy& s) {
        s.block_tokens = other;
        follow_blocks(s);
      });
    }
  }

  // A tile of 0 rows and a tile of as many rows as there are both mean all rows.
  void tile(const KnobRow& row) {
    const int64_t set = row.at.get(own_), rows = row.rows(own_);
    const int64_t own = set > 0 && set < rows ? set : 0;
    const auto turn_to = [&](int64_t tokens) {
      const auto text = [](int64_t t) { return t == 0 ? "all rows" : format_tokens(t); };
      add(row.key, text(own), text(tokens), [&](Strategy& s) { row.at.set(s, tokens); });
    };
    const int64_t half = (own == 0 ? rows : own) / 2;
    if (half >= kSmallestTile) turn_to(half);
    if (own != 0) turn_to(2 * own < rows ? 2 * own : 0);
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
