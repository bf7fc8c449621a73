#include "tests/engine/training_fixture.h"

#include "hwprofiles/catalog.h"

namespace longspan::testing {

ModelSpec byte_llama() {
  ModelSpec m;
  m.name = "byte-llama";
  m.layers = 2;
  m.hidden = 128;
  m.heads = 4;
  m.kv_heads = 2;
  m.head_dim = 32;
  m.ffn = 344;
  m.vocab = 256;
  m.max_positions = 8192;
  return m;
}

Plan plan_for(const ModelSpec& model, const Strategy& strategy, int64_t sequence,
              int64_t microbatches) {
  Plan plan;
  plan.model = model;
  plan.hardware = load_hardware("cpu-example");
  plan.hardware.nvme.capacity_bytes.value = 1e9;
  plan.sequence = sequence;
  plan.microbatches = microbatches;
  plan.strategy = strategy;
  plan.created_by = "test";
  return plan;
}

Strategy whole_sequence(int64_t sequence) {
  Strategy s;
  s.chunk_tokens = s.block_tokens = sequence;
  return s;
}

Strategy chunked_and_offloaded(int64_t chunk) {
  Strategy s;
  s.chunk_tokens = s.block_tokens = chunk;
  s.kv = s.between_uses = Tier::host;
  s.layer_input.where = Saved::nvme;
  s.attention_out.where = Saved::host;
  s.qkv.where = s.mlp_input.where = s.mlp_inner.where = Saved::recompute;
  s.mlp_tile = s.loss_tile = chunk / 2;
  s.parameters = s.gradients = s.optimizer = Tier::host;
  return s;
}

std::shared_ptr<const TokenSource> example_text(int64_t sequence) {
  return open_tokens(LONGSPAN_SOURCE_DIR "/examples/opticks.txt", "text", sequence, 256);
}

}  // namespace longspan::testing
