// The moments of a step: what each holds, in bytes of the tensors that the software makes.
#include <catch2/catch.hpp>

#include "frameworks/knobs/configured_run.h"
#include "frameworks/model/gathered_memory.h"
#include "frameworks/model/loss_memory.h"
#include "frameworks/model/other_models.h"
#include "frameworks/model/partition.h"
#include "frameworks/model/run_memory.h"
#include "hwprofiles/catalog.h"
#include "models/catalog.h"

namespace longspan {
namespace {

using enum StepMoment;

constexpr double kVocabulary = 128256, kHidden = 4096, kInner = 14336;
constexpr double kTable = kVocabulary * kHidden;
constexpr double kLayer = kHidden * (2 * 4096 + 2 * 1024 + 3 * kInner + 2);

// Four layers of Llama 3.1 8B.
ModelSpec short_8b() {
  ModelSpec model = load_model("llama-3.1-8b");
  model.layers = 4;
  return model;
}

TrainingRun run_8b(int64_t gpus) {
  TrainingRun run;
  run.gpus = run.degrees.data = run.global_batch = gpus;
  run.precision = "bf16";
  run.sequence = 4096;
  run.microbatch = 1;
  run.zero = gpus > 1 ? 3 : 0;
  return run;
}

RunMemory memory_of(const TrainingRun& run, const ModelSpec& model, const Stack& stack) {
  return run_memory(run, model, load_hardware("dgx-h100"), stack);
}

TEST_CASE("FSDP holds a running layer, the next one and the gradients of the one before") {
  const TrainingRun run = run_8b(8);
  const Stack stack = load_stack("hf-fsdp");
  ModelSpec model = short_8b();
  const auto bytes = [&](StepMoment moment) { return fsdp_bytes(run, model, stack, moment); };
  const double head = kTable + kHidden;  // and the last norm
  // Once for its use and once in the buffer of the gather.
  CHECK(bytes(forward_end) == Approx(2 * 2 * head));
  CHECK(bytes(loss) == Approx(2 * head));
  const double after = kHidden * (3 * kInner + 4096);  // gradients when attention runs
  CHECK(bytes(last_attention) == Approx(2 * (2 * kLayer + after + head)));
  CHECK(bytes(first_attention) == Approx(2 * (2 * kLayer + after + kTable)));
  CHECK(bytes(first_attention) - bytes(first_mlp) == Approx(2 * (after - kHidden * kInner)));
  CHECK(bytes(backward_end) == Approx(2 * (2 * kTable + kLayer)));
  CHECK(bytes(update) == 0);
  // A shared table, and a gradient of it, stay until the embedding's backward; the third tensor is
  // the sum of both gradients.
  model.tied_embeddings = true;
  CHECK(bytes(last_attention) == Approx(2 * (2 * kLayer + after + 2 * kTable)).epsilon(1e-3));
  CHECK(bytes(backward_end) == Approx(2 * (4 * kTable + kLayer)).epsilon(1e-3));
}

TEST_CASE("a loss in tiles of fixed size sums gradients of the whole head in single precision") {
  TrainingRun run = run_8b(1);
  run.tiled_loss = true;
  Stack stack = load_stack("hf-fsdp");
  stack.loss_work.value = 0;
  stack.tile_rows.value = 4096;
  stack.tile_columns.value = 32768;
  stack.tile_sum_bytes.value = 4;
  run.sequence = 8192;
  const double tile = 2.0 * 4096 * 32768, rows = 8192 * kHidden;
  // The sum and its cast, of the head and of the hidden states, which the forward has copied.
  CHECK(loss_work_bytes(run, short_8b(), stack, 2) == Approx(tile + 6 * kTable + (6 + 2) * rows));
  // Weights in single precision are cast in pieces, and their gradient is not.
  CHECK(loss_work_bytes(run, short_8b(), stack, 4) ==
        Approx(tile + 4 * kTable + (6 + 2) * rows + 2 * kHidden * (2 * 32768 + 4096)));
  run.scored_share = 0.25;
  const double fewer = 2.0 * 2048 * 32768;
  CHECK(loss_work_bytes(run, short_8b(), stack, 2) == Approx(fewer + 6 * kTable + 2 * rows));
}

TEST_CASE("eager attention holds 16 B for a score of the running layer, and keeps 6") {
  TrainingRun run = run_8b(1);
  run.flash_attention = false;
  run.recompute = Recompute::full;
  const Stack stack = load_stack("hf-fsdp");
  const double scores = 32.0 * 4096 * 4096;
  const LayerBytes saved = saved_bytes(short_8b(), stack, layer_shape(run));
  CHECK(saved.scores == 6 * scores);
  const LayerWorkBytes work = layer_work_bytes(run, short_8b(), stack);
  // Besides, the first norm, queries, copied keys, and gradients of values and output.
  CHECK(saved.all + work.attention == Approx(16 * scores + 9 * 2.0 * 4096 * kHidden));
}

TEST_CASE("an update of lists of tensors holds another copy of the parameters") {
  TrainingRun run = run_8b(1);
  run.sequence = 128;
  run.recompute = Recompute::full;
  const Stack stack = load_stack("hf-autocast");
  const ModelSpec model = short_8b();
  const double parameters = 2 * kTable + kHidden + 4 * kLayer;
  run.update_copies = true;
  const RunMemory copied = memory_of(run, model, stack);
  CHECK(copied.moment == update);
  CHECK(copied.tensors() == Approx(20 * parameters + stack.workspace_bytes.value));
  CHECK(copied.in_update == copied.tensors());
  // The optimizer's states are not there before the first update.
  CHECK(copied.before_update < 12 * parameters);
  CHECK(copied.at_start == Approx(4 * parameters));
  run.update_copies = false;
  CHECK(memory_of(run, model, stack).in_update == Approx(copied.in_update - 4 * parameters));
}

TEST_CASE("moments of embeddings can be wider than others") {
  TrainingRun run = run_8b(1);
  run.optimizer_state_bytes = 2;
  const Stack stack = load_stack("hf-fsdp");
  const double narrow = memory_of(run, short_8b(), stack).optimizer;
  run.embedding_state_bytes = 8;
  CHECK(memory_of(run, short_8b(), stack).optimizer - narrow == Approx(6 * kTable));
}

TEST_CASE("a reference under FSDP is gathered as one in its forward") {
  TrainingRun run = run_8b(8);
  run.recompute = Recompute::full;
  run.tiled_loss = true;
  const Stack stack = load_stack("hf-fsdp");
  run.others = {{.role = ModelRole::reference, .place = ModelPlace::joint}};
  run.frozen_bytes = 2;
  const HardwareProfile hw = load_hardware("dgx-h100");
  const RunMemory both = step_memory(run, short_8b(), hw, stack);
  const double parameters = 2 * kTable + kHidden + 4 * kLayer;
  CHECK(both.moment == reference);
  CHECK(both.gathered == Approx(2 * (2 * parameters + kTable + kHidden)));
  CHECK(both.parameters == Approx(4 * parameters / 8));
  CHECK(both.held() == Approx(2 * parameters / 8));
}

}  // namespace
}  // namespace longspan
