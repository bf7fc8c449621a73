// The planner's rule for scratch memory equals the kernels' own, for each op kind.
#include "planner/program/workspace.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "engine/cpu/blocks.h"
#include "models/adapters.h"
#include "models/catalog.h"
#include "models/nf4.h"
#include "models/tensor_slices.h"

namespace longspan {

TEST_CASE("workspaces are what the CPU kernels declare") {
  std::vector<ModelSpec> models;
  for (const char* name : {"tiny-gpt", "tiny-llama", "qwen3-0.6b", "llama-3.1-8b"}) {
    for (int placement = 0; placement < 3; ++placement) {
      models.push_back(load_model(name));
      models.back().norm_placement = static_cast<NormPlacement>(placement);
    }
  }
  models.back().qk_norm = models.back().qk_norm_of_token = true;
  for (const char* name : {"mixtral-8x7b", "glm-4.5-air"}) {
    // The kind of the last layers.
    const ModelSpec model = load_model(name);
    models.push_back(model_of_run(model, layer_runs(model).back()));
  }
  models.push_back(with_adapters(load_model("llama-3.1-8b"), {8, 16, parse_projections("all")}));
  models.push_back(
      with_adapters(load_model("qwen3-8b"), {5, 16, parse_projections("v_proj,o_proj,down_proj")}));
  for (const ModelSpec& model : models) {
    for (const int64_t tile : {0, 1, 100, 4096}) {
      INFO(model.name << " tile " << tile);
      const Lengths lengths{8192, 2048, 1024};
      Strategy s;
      s.chunk_tokens = lengths.chunk;
      s.block_tokens = lengths.block;
      s.projection_tile = s.mlp_tile = s.loss_tile = tile;
      const auto clipped = [&](int64_t rows) { return tile > 0 ? std::min(tile, rows) : rows; };
      const Workspaces ws = workspaces(model, lengths, s, DType::float32, 0);
      const int64_t chunk = clipped(lengths.chunk), block = clipped(lengths.block);
      CHECK(ws.qkv_forward == 4 * cpu::qkv_forward_workspace(model, lengths.chunk, chunk));
      CHECK(ws.qkv_backward == 4 * cpu::qkv_backward_workspace(model, lengths.chunk, chunk));
      CHECK(ws.attention_forward == 4 * cpu::attention_forward_workspace(model));
      CHECK(ws.attention_backward == 4 * cpu::attention_backward_workspace(model));
      CHECK(ws.out == 4 * cpu::out_workspace(model, lengths.block, block));
      CHECK(ws.mlp_forward == 4 * cpu::mlp_forward_workspace(model, lengths.block, block, false));
      CHECK(ws.mlp_forward_saving ==
            4 * cpu::mlp_forward_workspace(model, lengths.block, block, true));
      CHECK(ws.mlp_backward == 4 * cpu::mlp_backward_workspace(model, lengths.block, block, false));
      CHECK(ws.mlp_backward_saved ==
            4 * cpu::mlp_backward_workspace(model, lengths.block, block, true));
      CHECK(ws.mlp_backward_input ==
            4 * cpu::mlp_backward_input_workspace(model, lengths.block, block));
      CHECK(ws.mlp_backward_weight ==
            4 * cpu::mlp_backward_weight_workspace(model, lengths.block, block));
      CHECK(ws.qkv_backward_input ==
            4 * cpu::qkv_backward_input_workspace(model, lengths.chunk, chunk));
      const Workspaces forward = workspaces(model, lengths, for_forward(s), DType::float32, 0);
      CHECK(forward.loss == 4 * cpu::loss_workspace(model, lengths.block, block, true));
      Lengths of_group = lengths;
      of_group.tensor = 2;
      const Workspaces part = workspaces(model, of_group, s, DType::float32, 0);
      CHECK(part.mlp_forward ==
            4 * cpu::mlp_forward_workspace(model, lengths.block, block, false, true));
      CHECK(part.mlp_forward_saving ==
            4 * cpu::mlp_forward_workspace(model, lengths.block, block, true, true));
      CHECK(part.mlp_backward ==
            4 * cpu::mlp_backward_workspace(model, lengths.block, block, false, true));
      CHECK(part.mlp_backward_saved ==
            4 * cpu::mlp_backward_workspace(model, lengths.block, block, true, true));
      CHECK(ws.loss == 4 * cpu::loss_workspace(model, lengths.block, block));
      CHECK(ws.vocabulary == 4 * cpu::vocabulary_workspace(model, lengths.block, block));
    }
    for (const int64_t groups : {2, 4}) {
      Lengths lengths{4096, 4096, 4096};
      lengths.head_groups = groups;
      Strategy s;
      s.chunk_tokens = s.block_tokens = lengths.chunk;
      const Workspaces ws = workspaces(model, lengths, s, DType::float32, 0);
      CHECK(ws.qkv_backward ==
            4 * cpu::qkv_backward_workspace(model, 4096, 4096, model.heads / groups));
      ModelSpec share = model;
      share.kv_heads = kv_heads_per_rank(model, groups);
      CHECK(ws.attention_backward == 4 * cpu::attention_backward_workspace(share));
    }
    const std::array<int64_t, 3> elements = unit_elements(model);
    const std::vector<ParameterUnit> units = parameter_units(model);
    CHECK(elements[0] == units.front().elements);
    CHECK(elements[1] == units[1].elements);
    CHECK(elements[2] == units[model.layers + 1].elements);
    CHECK(experts_elements(model) == (model.experts ? units[model.layers + 2].elements : 0));
    for (const int64_t bytes : {2, 4}) {
      const std::array<int64_t, 2> plain = plain_elements(model);
      CHECK(nf4_bytes(elements[1] - plain[0], plain[0], bytes) ==
            Nf4Layout(units[1], bytes).total_bytes);
      if (!model.experts) continue;
      CHECK(nf4_bytes(experts_elements(model) - plain[1], plain[1], bytes) ==
            Nf4Layout(units[model.layers + 2], bytes).total_bytes);
    }
    CHECK(adapter_elements(model) == (model.adapters ? units.back().elements : 0));

    int64_t replicated = 0;
    for (const UnitRange& range : replicated_in_layer(model, 2)) {
      replicated += range.end - range.begin;
    }
    CHECK(replicated_elements(model) ==
          std::array<int64_t, 3>{elements[0], replicated, elements[2]});
  }
}

}  // namespace longspan
