#include "planner/strategy/knobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <type_traits>
#include <utility>

namespace longspan {
namespace {

constexpr std::string_view kFlagNames[] = {"false", "true"};

template <class Owner, class T>
constexpr auto& field(Owner& s, T Strategy::*member) {
  return s.*member;
}
template <class Owner, class T>
constexpr auto& field(Owner& s, T ParallelLayout::*member) {
  return s.parallel.*member;
}
template <class Owner>
constexpr auto& field(Owner& s, SavedPolicy Strategy::*member) {
  return (s.*member).where;
}
template <auto member>
using FieldType = std::remove_reference_t<decltype(field(std::declval<Strategy&>(), member))>;

template <class T>
constexpr std::span<const std::string_view> words_of() {
  if (std::is_same_v<T, Tier>) return kTierNames;
  if (std::is_same_v<T, Saved>) return kSavedNames;
  if (std::is_same_v<T, BackwardOrder>) return kOrderNames;
  if (std::is_same_v<T, MomentFormat>) return kMomentFormatNames;
  if (std::is_same_v<T, MasterFormat>) return kMasterFormatNames;
  if (std::is_same_v<T, ProductFormat>) return kProductFormatNames;
  if (std::is_same_v<T, bool>) return kFlagNames;
  return {};
}
template <class T>
constexpr KnobKind kind_of() {
  if (std::is_same_v<T, Saved>) return KnobKind::policy;
  if (std::is_same_v<T, bool>) return KnobKind::flag;
  return std::is_enum_v<T> ? KnobKind::word : KnobKind::number;
}
template <SavedPolicy Strategy::*policy>
constexpr KnobFraction kFractionOf = {
    [](const Strategy& s) { return (s.*policy).fraction; },
    [](Strategy& s, double fraction) { (s.*policy).fraction = fraction; }, false};
constexpr KnobFraction kOptimizerFraction = {
    [](const Strategy& s) { return s.optimizer_fraction; },
    [](Strategy& s, double fraction) { s.optimizer_fraction = fraction; }, true};

template <auto member>
constexpr const KnobFraction* fraction_of() {
  if constexpr (std::is_same_v<decltype(member), SavedPolicy Strategy::*>) {
    return &kFractionOf<member>;
  } else if constexpr (std::is_same_v<decltype(member), Tier Strategy::*>) {
    return member == &Strategy::optimizer ? &kOptimizerFraction : nullptr;
  }
  return nullptr;
}

template <auto member>
constexpr KnobAccess at = {
    kind_of<FieldType<member>>(),
    [](const Strategy& s) { return static_cast<int64_t>(field(s, member)); },
    [](Strategy& s, int64_t value) { field(s, member) = static_cast<FieldType<member>>(value); },
    words_of<FieldType<member>>(), fraction_of<member>()};

constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
constexpr int64_t kMostPercent = 1'000'000;
constexpr auto kHost = static_cast<int64_t>(Tier::host);
constexpr auto kSavedNvme = static_cast<int64_t>(Saved::nvme);

bool has_chunks(const Strategy& s, int64_t sequence) {
  return sequence / s.parallel.ring / s.chunk_tokens > 1;
}

bool trains(const Strategy& s, int64_t) { return !s.forward_only; }

// The list depends only on whether a degree exceeds 1; for a ring, on the number of passes.
constexpr auto kRows = std::to_array<KnobRow>({
    {.key = "parallel.data",
     .at = at<&ParallelLayout::data>,
     .least = 1,
     .most = kMostRanks,
     .unit = "ranks",
     .optional = true,
     .changes_list = true,
     .list_part =
         [](const Strategy& s) {
           return int64_t{2 * (s.parallel.ranks() > 1) + (s.parallel.replicas() > 1)};
         },
     .changes_sizes = true,
     .turn = Turn::trade},
    {.key = "parallel.tensor",
     .at = at<&ParallelLayout::tensor>,
     .least = 1,
     .most = kMostRanks,
     .unit = "ranks",
     .optional = true,
     .changes_list = true,
     .list_part = [](const Strategy& s) { return int64_t{s.parallel.tensor > 1}; },
     .changes_sizes = true,
     .turn = Turn::trade},
    {.key = "parallel.expert",
     .at = at<&ParallelLayout::expert>,
     .least = 1,
     .most = kMostRanks,
     .unit = "ranks",
     .optional = true,
     .changes_list = true,
     .list_part =
         [](const Strategy& s) {
           const ParallelLayout& p = s.parallel;
           return int64_t{(p.expert > 1) + (p.expert > 1 && p.replicas() > p.expert)};
         },
     .changes_sizes = true,
     .only_if_set = true,
     .turn = Turn::groups,
     .matters = [](const Strategy& s, int64_t) { return s.parallel.expert > 1; }},
    {.key = "parallel.expert_capacity",
     .at = at<&ParallelLayout::expert_capacity>,
     .most = kMostPercent,
     .unit = "% of the mean",
     .optional = true,
     .changes_sizes = true,
     .only_if_set = true,
     .turn = Turn::fixed},
    {.key = "parallel.expert_imbalance",
     .at = at<&ParallelLayout::expert_imbalance>,
     .least = 100,
     .most = kMostPercent,
     .unit = "% of the mean",
     .optional = true,
     .changes_sizes = true,
     .only_if_set = true,
     .turn = Turn::fixed},
    {.key = "parallel.ring",
     .at = at<&ParallelLayout::ring>,
     .least = 1,
     .most = kMostRanks,
     .unit = "ranks",
     .optional = true,
     .changes_list = true,
     .changes_sizes = true,
     .turn = Turn::trade},
    {.key = "parallel.ulysses",
     .at = at<&ParallelLayout::ulysses>,
     .least = 1,
     .most = kMostRanks,
     .unit = "ranks",
     .optional = true,
     .changes_list = true,
     .list_part = [](const Strategy& s) { return int64_t{s.parallel.ulysses > 1}; },
     .changes_sizes = true,
     .turn = Turn::trade},
    {.key = "parallel.zero",
     .at = at<&ParallelLayout::zero>,
     .most = 3,
     .optional = true,
     .changes_list = true,
     .list_part = [](const Strategy& s) { return s.parallel.shards() > 1 ? s.parallel.zero : 0; },
     .changes_sizes = true,
     .turn = Turn::step,
     .matters = [](const Strategy& s, int64_t) { return s.parallel.replicas() > 1; }},
    {.key = "parallel.overlap",
     .at = at<&ParallelLayout::overlap>,
     .optional = true,
     .changes_list = true,
     .matters = [](const Strategy& s, int64_t) { return s.parallel.ranks() > 1; }},
    {.key = "chunk_tokens",
     .at = at<&Strategy::chunk_tokens>,
     .least = 1,
     .most = kAny,
     .unit = "tokens",
     .changes_sizes = true,
     .turn = Turn::chunk},
    {.key = "block_tokens",
     .at = at<&Strategy::block_tokens>,
     .least = 1,
     .most = kAny,
     .unit = "tokens",
     .changes_sizes = true,
     .turn = Turn::block,
     .matters = has_chunks},
    {.key = "head_groups",
     .at = at<&Strategy::head_groups>,
     .least = 1,
     .most = int64_t{1} << 20,
     .unit = "groups",
     .optional = true,
     .changes_list = true,
     .changes_sizes = true,
     .turn = Turn::groups,
     .matters =
         [](const Strategy& s, int64_t sequence) {
           return s.chunk_tokens == sequence && s.parallel.tensor == 1;
         }},
    // Attention over streamed keys uses a separate sum.
    {.key = "kv",
     .at = at<&Strategy::kv>,
     .most = kNvmeTier,
     .changes_list = true,
     .changes_sizes = true,
     .matters = has_chunks},
    {.key = "between_uses",
     .at = at<&Strategy::between_uses>,
     .old_key = "idle",
     .most = kHost,
     .changes_list = true,
     .matters = has_chunks},
    {.key = "prefetch_depth",
     .at = at<&Strategy::prefetch_depth>,
     .most = 64,
     .unit = "compute ops",
     .changes_list = true,
     .turn = Turn::step},
    {.key = "offload_window",
     .at = at<&Strategy::offload_window>,
     .most = 64,
     .unit = "compute ops",
     .changes_list = true,
     .turn = Turn::step},
    {.key = "backward_order",
     .at = at<&Strategy::backward_order>,
     .changes_list = true,
     .matters = [](const Strategy& s,
                   int64_t sequence) { return trains(s, sequence) && has_chunks(s, sequence); }},
    {.key = "deterministic",
     .at = at<&Strategy::deterministic>,
     .optional = true,
     .changes_sizes = true,
     .turn = Turn::off},
    {.key = "early_update",
     .at = at<&Strategy::early_update>,
     .optional = true,
     .changes_list = true,
     .turn = Turn::off},
    // It changes what is trained, so it is no neighbour of a plan.
    {.key = "moments",
     .at = at<&Strategy::moments>,
     .most = static_cast<int64_t>(MomentFormat::int8),
     .optional = true,
     .changes_sizes = true,
     .matters = [](const Strategy&, int64_t) { return false; }},
    {.key = "masters",
     .at = at<&Strategy::masters>,
     .most = static_cast<int64_t>(MasterFormat::bfloat16),
     .optional = true,
     .changes_list = true,
     .changes_sizes = true,
     .matters = [](const Strategy&, int64_t) { return false; }},
    // It changes the numbers. Below 16 bits every op with products has a workspace.
    {.key = "products",
     .at = at<&Strategy::products>,
     .most = static_cast<int64_t>(ProductFormat::nvfp4),
     .optional = true,
     .changes_list = true,
     .list_part = [](const Strategy& s) { return int64_t{casts_operands(s)}; },
     .changes_sizes = true,
     .matters = [](const Strategy&, int64_t) { return false; }},
    {.key = "forward_only",
     .at = at<&Strategy::forward_only>,
     .optional = true,
     .changes_list = true,
     .changes_sizes = true,
     .turn = Turn::off,
     .matters = [](const Strategy&, int64_t) { return false; }},  // it is another question
    {.key = "saved.layer_input",
     .at = at<&Strategy::layer_input>,
     .most = kSavedNvme,
     .changes_list = true,
     .matters = trains},
    {.key = "saved.qkv",
     .at = at<&Strategy::qkv>,
     .most = kSavedNvme,
     .changes_list = true,
     .matters = trains},
    {.key = "saved.attention_out",
     .at = at<&Strategy::attention_out>,
     .most = kSavedNvme,
     .changes_list = true,
     .matters = trains},
    {.key = "saved.mlp_input",
     .at = at<&Strategy::mlp_input>,
     .most = kSavedNvme,
     .changes_list = true,
     .matters = trains},
    {.key = "saved.mlp_inner",
     .at = at<&Strategy::mlp_inner>,
     .most = kSavedNvme,
     .changes_list = true,
     .matters = trains},
    // Tiles change only workspaces and durations of tiled ops.
    {.key = "tiles.projection",
     .at = at<&Strategy::projection_tile>,
     .most = kAny,
     .unit = "tokens",
     .turn = Turn::tile,
     .rows = [](const Strategy& s) { return s.chunk_tokens / s.parallel.ulysses; }},
    {.key = "tiles.mlp",
     .at = at<&Strategy::mlp_tile>,
     .most = kAny,
     .unit = "tokens",
     .turn = Turn::tile,
     .rows = [](const Strategy& s) { return s.block_tokens / s.parallel.ulysses; }},
    {.key = "tiles.loss",
     .at = at<&Strategy::loss_tile>,
     .most = kAny,
     .unit = "tokens",
     .turn = Turn::tile,
     .rows =
         [](const Strategy& s) {
           return s.block_tokens / (s.parallel.ulysses * s.parallel.tensor);
         }},
    {.key = "states.parameters",
     .at = at<&Strategy::parameters>,
     .most = kHost,
     .changes_list = true},
    {.key = "states.gradients",
     .at = at<&Strategy::gradients>,
     .most = kHost,
     .changes_list = true,
     .matters = trains},
    {.key = "states.optimizer",
     .at = at<&Strategy::optimizer>,
     .most = kNvmeTier,
     .changes_list = true,
     .matters = trains},
});

// Calls is_so.operator()<i>() for every row i until one is false, and returns that i, or the number
// of rows. Unrolled over constants, so that rows are inlined: a search calls it millions of times.
template <class Is>
size_t first_not(const Is& is_so) {
  size_t first = 0;
  [&]<size_t... i>(std::index_sequence<i...>) {
    (void)((is_so.template operator()<i>() && ++first != 0) && ...);
  }
  (std::make_index_sequence<kRows.size()>());
  return first;
}

}  // namespace

std::span<const KnobRow> knob_rows() { return kRows; }

std::string text_of(const KnobRow& row, int64_t value) {
  const auto count = static_cast<int64_t>(row.at.words.size());
  if (value < 0 || value >= count) return std::to_string(value);
  return std::string(row.at.words[static_cast<size_t>(value)]);
}

std::string taken_by(const KnobRow& row) {
  if (row.at.kind == KnobKind::number) {
    if (row.most == kAny) return fmt::format("{} >= {}", row.unit, row.least);
    return fmt::format("{} to {}{}{}", row.least, row.most, row.unit.empty() ? "" : " ", row.unit);
  }
  std::string list;
  for (int64_t value = row.least; value <= row.most; ++value) {
    const char* before = list.empty() ? "" : value == row.most ? " or " : ", ";
    list += before + text_of(row, value);
  }
  return list;
}

const KnobRow* first_out_of_range(const Strategy& s) {
  const size_t first = first_not([&]<size_t i>() {
    constexpr const KnobRow& row = kRows[i];
    if (!row.takes(row.at.get(s))) return false;
    if (row.at.fraction != nullptr) {
      const double fraction = row.at.fraction->get(s);
      return fraction > 0 && fraction <= 1;
    }
    return true;
  });
  return first < kRows.size() ? &kRows[first] : nullptr;
}

bool have_same_sizes(const Strategy& a, const Strategy& b) {
  if (a.parallel.pipeline.slices != b.parallel.pipeline.slices) return false;
  return first_not([&]<size_t i>() {
           constexpr const KnobRow& row = kRows[i];
           return !row.changes_sizes || row.at.get(a) == row.at.get(b);
         }) == kRows.size();
}

void append_list_key(const Strategy& s, std::string& key) {
  const auto put = [&](int64_t value) {
    key.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  for (const KnobRow& row : kRows) {
    if (!row.changes_list) continue;
    put(row.list_part == nullptr ? row.at.get(s) : row.list_part(s));
    if (row.at.fraction != nullptr) put(std::bit_cast<int64_t>(row.at.fraction->get(s)));
  }
}

}  // namespace longspan
