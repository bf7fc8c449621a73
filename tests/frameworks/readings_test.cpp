// Keys that are easily misread, and GPUs that do not have what a config asks for.
#include <catch2/catch.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "frameworks/check/check_config.h"
#include "frameworks/knobs/configured_model.h"
#include "frameworks/knobs/expert_layers.h"
#include "frameworks/read/read_config.h"
#include "frameworks/search/framework_search.h"
#include "frameworks/write/export_plan.h"
#include "hwprofiles/catalog.h"
#include "models/catalog.h"
#include "planner/schedule/registry.h"

using namespace longspan;
using Catch::Matchers::Contains;

namespace {

ConfigReading read(const std::vector<ConfigText>& files) {
  return read_config(files, "", [](const std::string&) { return std::optional<std::string>(); });
}
ConfigCheck checked(const std::vector<ConfigText>& files, const std::string& hw,
                    const std::string& model = "llama-3.1-8b") {
  return check_config(read(files), load_model(model), load_hardware(hw), {});
}
ConfigCheck checked_yaml(const std::string& text, const std::string& hw = "8xh100-80g") {
  return checked({{"train.yaml", text}}, hw);
}
bool has_note(const ConfigReading& reading, const std::string& part) {
  for (const std::string& note : reading.notes) {
    if (note.find(part) != std::string::npos) return true;
  }
  return false;
}

const std::string kAxolotl = "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 8192\n";

}  // namespace

TEST_CASE("attention of PyTorch runs on GPUs without FlashAttention 2", "[frameworks]") {
  for (const char* attention : {"", "xformers_attention: true\n", "sdp_attention: true\n"}) {
    for (const char* hw : {"8xv100-32g", "8xt4"}) {
      CAPTURE(attention, hw);
      const ConfigCheck check = checked_yaml(kAxolotl + "fp16: true\n" + attention, hw);
      CHECK(check.configured.run.precision == "fp16");
    }
  }
  // A type that is left to the framework is fp16 there, and bf16 elsewhere.
  CHECK(checked_yaml(kAxolotl, "8xv100-32g").configured.run.precision == "fp16");
  CHECK(checked_yaml(kAxolotl).configured.run.precision == "bf16");
}

TEST_CASE("what a GPU does not have is refused by its key", "[frameworks]") {
  const auto refusal = [](const std::string& text, const std::string& hw) -> std::string {
    try {
      checked({{"train.yaml", kAxolotl + text}}, hw);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  CHECK_THAT(refusal("bf16: true\n", "8xv100-32g"), Contains("bf16") && Contains("bfloat16"));
  const std::string flash = "fp16: true\nbf16: false\nattn_implementation: flash_attention_2\n";
  CHECK_THAT(refusal(flash, "8xt4"),
             Contains("attn_implementation") && Contains("FlashAttention 2"));
  CHECK(refusal(flash, "8xa100-80g").empty());
  CHECK_THAT(refusal("fp8: true\n", "8xa100-80g"), Contains("FP8"));
  const std::string mx =
      "[model]\nname = 'llama3'\nflavor = '8B'\nconverters = ['mx']\n[training]\nseq_len = 8192\n"
      "local_batch_size = 1\n";
  CHECK_THROWS_WITH(checked({{"train.toml", mx}}, "8xh100-80g"), Contains("MXFP8"));
  CHECK_NOTHROW(checked({{"train.toml", mx}}, "8xb200"));
}

TEST_CASE("the microbatches in flight follow the named schedule", "[frameworks]") {
  const auto memory_of = [](const std::string& schedule) {
    const std::string text =
        "[model]\nname = 'llama3'\nflavor = '8B'\n[training]\nseq_len = 4096\n"
        "local_batch_size = 32\n[parallelism]\npipeline_parallel_degree = 4\n"
        "pipeline_parallel_schedule = '" +
        schedule + "'\n[activation_checkpoint]\nmode = 'full'\n";
    return checked({{"train.toml", text}}, "8xh100-80g").predicted.needs.memory;
  };
  const RunMemory gpipe = memory_of("GPipe"), one = memory_of("1F1B");
  // All 32 microbatches wait, instead of as many as there are stages.
  CHECK(gpipe.saved > 4 * one.saved);
  CHECK(memory_of("LoopedBFS").saved > 4 * one.saved);
  CHECK(memory_of("ZBVZeroBubble").saved < gpipe.saved / 4);
  CHECK(memory_of("DualPipeV").saved != memory_of("Interleaved1F1B").saved);
}

TEST_CASE("every schedule that a framework's key sets is known", "[frameworks]") {
  for (const std::string& name : framework_names()) {
    for (const FrameworkKey& key : load_framework(name).keys) {
      CHECK(key.sets != "schedule");
      for (const auto& [word, sets] : key.values) {
        for (const auto& [knob, value] : sets) {
          if (knob != "schedule" || value == "none") continue;
          CAPTURE(name, key.key, value);
          CHECK(find_schedule_family(value) != nullptr);
        }
      }
    }
  }
}

TEST_CASE("axolotl's batch_size is that of a process", "[frameworks]") {
  const ConfigCheck check = checked_yaml(kAxolotl + "micro_batch_size: 2\nbatch_size: 10\n");
  CHECK(check.configured.run.global_batch == 80);
  CHECK(check.configured.run.microbatch == 2);
  CHECK_THROWS_WITH(checked_yaml(kAxolotl + "micro_batch_size: 4\nbatch_size: 2\n"),
                    Contains("batch_size"));
  CHECK_THROWS_WITH(checked_yaml(kAxolotl + "batch_size: 8\ngradient_accumulation_steps: 4\n"),
                    Contains("only one of"));
}

TEST_CASE("each module that is recomputed is looked at", "[frameworks]") {
  const std::string flags =
      "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
      "--num-attention-heads 32 --seq-length 8192 --micro-batch-size 1 --global-batch-size 8 "
      "--bf16 "
      "--recompute-granularity selective --recompute-modules core_attn";
  CHECK_FALSE(has_note(read({{"run.sh", flags}}), "recompute_modules"));
  const ConfigReading reading = read({{"run.sh", flags + " layernorm mlp"}});
  CHECK(has_note(reading, "recompute_modules: \"layernorm\""));
  CHECK(has_note(reading, "recompute_modules: \"mlp\""));
}

TEST_CASE("a key that the user gives stays as given, even one that sets no knob", "[frameworks]") {
  const ModelSpec model = load_model("qwen3-8b");
  const HardwareProfile hw = load_hardware("4xh100-80g");
  const auto longest = [&](const std::vector<std::string>& with) {
    return longest_on(question_of(load_framework("axolotl"), with, model, hw), 1024);
  };
  const auto free = longest({});
  REQUIRE(free);
  REQUIRE(free->knobs.is("loss", "fused"));
  const auto whole = longest({"liger_fused_linear_cross_entropy=false"});
  REQUIRE(whole);
  CHECK_FALSE(whole->knobs.is("loss", "fused"));
  CHECK(whole->sequence() < free->sequence());
}

TEST_CASE("an export lists where its model is not the plan's", "[frameworks]") {
  const HardwareProfile hw = load_hardware("8xh200");
  const ModelSpec model = load_model("qwen3-32b");
  const auto unsaid = [&](const std::string& name) {
    const auto plan = fastest_on(question_of(load_framework(name), {}, model, hw), 4096);
    REQUIRE(plan);
    const ExportedPlan exported = export_settings(*plan);
    std::string knobs;
    for (const KnobCost& cost : exported.unsaid) knobs += cost.knob.knob + " ";
    // What the README predicts is what check says of the files.
    std::vector<ConfigText> files = exported.config.files;
    ConfigReading reading =
        read_config(files, name, [](const std::string&) { return std::nullopt; });
    if (const auto own = model_of(reading.knobs, *reading.framework); own && exported.nearest) {
      const ConfigCheck check = check_config(reading, *own, hw, {});
      CHECK(check.predicted.needs.device ==
            Approx(exported.nearest->predicted.needs.device).epsilon(0.002));
    }
    return knobs;
  };
  CHECK_THAT(unsaid("gpt-neox"), Contains("head-dim"));
  CHECK_THAT(unsaid("torchtune"), Contains("model"));
  CHECK_THAT(unsaid("megatron-lm"), !Contains("head-dim") && !Contains("qk-norm"));
  CHECK_THAT(unsaid("megatron-bridge"), !Contains("qk-norm"));
}

TEST_CASE("axolotl's selective checkpointing saves attention's output", "[frameworks]") {
  const std::string full = kAxolotl + "gradient_checkpointing: true\n";
  const ConfigCheck none = checked_yaml(kAxolotl), all = checked_yaml(full),
                    some = checked_yaml(full + "selective_checkpointing: true\n");
  const auto saved = [](const ConfigCheck& c) { return c.predicted.needs.memory.saved; };
  const auto compute = [](const ConfigCheck& c) { return c.predicted.time.compute; };
  CHECK(saved(some) > saved(all));
  CHECK(saved(some) < 0.3 * saved(none));
  CHECK(compute(some) < compute(all));
  CHECK(compute(some) > compute(none));
  // Without checkpointing there is nothing that it changes.
  CHECK(saved(checked_yaml(kAxolotl + "selective_checkpointing: true\n")) == saved(none));
}

TEST_CASE("a file that a key of another file names is read where the key says", "[frameworks]") {
  const std::string run =
      "torchrun --nproc_per_node 8 run_clm.py --model_name_or_path meta-llama/Llama-3.1-8B "
      "--block_size 4096 --per_device_train_batch_size 1 --bf16 --gradient_checkpointing true "
      "--fsdp \"full_shard auto_wrap\" --fsdp_config ";
  const std::string json = R"({"fsdp_transformer_layer_cls_to_wrap":["LlamaDecoderLayer"],)"
                           R"("fsdp_offload_params":true})";
  const ConfigReading apart = read({{"run.sh", run + "conf/fsdp.json"}, {"fsdp.json", json}});
  CHECK(apart.framework->name == "transformers");
  CHECK(apart.knobs.is("parameters", "host"));
  CHECK(apart.unknown.empty());
  const ConfigReading within = read({{"run.sh", run + "'" + json + "'"}});
  CHECK(within.knobs.is("parameters", "host"));
}

TEST_CASE("what compiled layers gain is said to be unknown", "[frameworks]") {
  CHECK(has_note(read({{"a.yaml", kAxolotl + "torch_compile: true\n"}}), "torch_compile"));
  CHECK_FALSE(has_note(read({{"a.yaml", kAxolotl + "torch_compile: false\n"}}), "torch_compile"));
}

TEST_CASE("Liger's kernels are those of layers in LLaMA-Factory, too", "[frameworks]") {
  const std::string base =
      "model_name_or_path: meta-llama/Llama-3.1-8B\nfinetuning_type: full\ncutoff_len: 8192\n"
      "bf16: true\ndeepspeed: ds_z3_config.json\nstage: ";
  const auto seconds = [&](const std::string& stage) {
    const ConfigCheck without = checked_yaml(base + stage + "\nenable_liger_kernel: false\n");
    const ConfigCheck with = checked_yaml(base + stage + "\nenable_liger_kernel: true\n");
    return std::pair(without.predicted.time.step(), with.predicted.time.step());
  };
  for (const char* stage : {"sft", "dpo"}) {
    const auto [without, with] = seconds(stage);
    CHECK(with < 0.98 * without);
  }
}

TEST_CASE("configs that the software refuses are refused", "[frameworks]") {
  const std::string run =
      "torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --seq-length 4096 "
      "--micro-batch-size 1 --global-batch-size 64 --bf16 "
      "--tensor-model-parallel-size 2 --hidden-size 4096 ";
  const auto check = [&](const std::string& flags) {
    const ConfigReading reading = read({{"run.sh", run + flags}});
    return check_config(reading, *model_of(reading.knobs, *reading.framework),
                        load_hardware("2x8xh100-80g"), {});
  };
  const std::string deep =
      "--num-attention-heads 32 --pipeline-model-parallel-size 8 --num-layers ";
  CHECK_THROWS_WITH(check(deep + "126"), Contains("Number of layers"));
  CHECK_NOTHROW(check(deep + "126 --account-for-embedding-in-pipeline-split "
                             "--account-for-loss-in-pipeline-split"));
  CHECK_THROWS_WITH(check(deep + "126 --account-for-loss-in-pipeline-split"),
                    Contains("Number of"));
  const ConfigCheck uneven = check(deep +
                                   "126 --decoder-first-pipeline-num-layers 15 "
                                   "--decoder-last-pipeline-num-layers 15");
  CHECK(uneven.configured.run.stage_layers == std::vector<int64_t>{15, 16, 16, 16, 16, 16, 16, 15});
  CHECK_THROWS_WITH(check(deep + "126 --decoder-first-pipeline-num-layers 15"),
                    Contains("decoder-first-pipeline-num-layers"));
  CHECK_THROWS_WITH(check("--num-layers 32 --num-attention-heads 30"),
                    Contains("num-attention-heads") && Contains("4096"));
}

TEST_CASE("a search counts the ends of a model as layers where stages need it", "[frameworks]") {
  const ModelSpec model = load_model("llama-3.1-405b");
  const HardwareProfile hw = load_hardware("16x8xh200");
  const std::vector<std::string> with = {"pipeline_model_parallel_size=8",
                                         "tensor_model_parallel_size=8"};
  const auto plan = fastest_on(question_of(load_framework("megatron-lm"), with, model, hw), 8192);
  REQUIRE(plan);
  CHECK(plan->knobs.flag("embedding-layer"));
  CHECK(export_settings(*plan).config.files[0].text.find("account-for-loss-in-pipeline-split") !=
        std::string::npos);
}

TEST_CASE("DeepSpeed's three batch sizes must agree", "[frameworks]") {
  const auto check = [](const std::string& sizes) {
    return check_config(
        read({{"ds.json",
               R"({"zero_optimization":{"stage":3},"bf16":{"enabled":true},)" + sizes + "}"}}),
        load_model("llama-3.1-8b"), load_hardware("8xh100-80g"), {.sequence = 4096});
  };
  const std::string micro = R"("train_micro_batch_size_per_gpu":1)";
  CHECK_THROWS_WITH(check(micro + R"(,"gradient_accumulation_steps":2,"train_batch_size":32)"),
                    Contains("train_batch_size"));
  CHECK_NOTHROW(check(micro + R"(,"gradient_accumulation_steps":2,"train_batch_size":16)"));
  CHECK(check(micro + R"(,"train_batch_size":32)").configured.run.global_batch == 32);
}

TEST_CASE("LLaMA-Factory's context parallelism is Megatron's", "[frameworks]") {
  const std::string text =
      "model_name_or_path: meta-llama/Llama-3.1-8B\nstage: sft\nfinetuning_type: full\n"
      "cutoff_len: 8192\ncontext_parallel_size: 4\n";
  CHECK(has_note(read({{"a.yaml", text}}), "context_parallel_size"));
  CHECK_FALSE(has_note(read({{"a.yaml", text + "use_mca: true\n"}}), "context_parallel_size"));
}

TEST_CASE("checkpoints on a disk are not in host memory, and wait for it", "[frameworks]") {
  const std::string text = kAxolotl + "gradient_checkpointing: true\nactivation_offloading: ";
  const ConfigCheck host = checked_yaml(text + "true\n"), disk = checked_yaml(text + "disk\n");
  CHECK(disk.predicted.needs.host < host.predicted.needs.host);
  CHECK(disk.predicted.time.host > host.predicted.time.host);
  HardwareProfile without = load_hardware("8xh100-80g");
  without.nvme = {};
  CHECK_THROWS_WITH(
      check_config(read({{"a.yaml", text + "disk\n"}}), load_model("llama-3.1-8b"), without, {}),
      Contains("activation_offloading") && Contains("no file storage"));
}

TEST_CASE("the longest sequence does not depend on the one that is checked", "[frameworks]") {
  const std::string base = "base_model: meta-llama/Llama-3.1-8B\ngradient_checkpointing: true\n";
  const ConfigCheck short_one = checked_yaml(base + "sequence_len: 4096\n");
  const int64_t longest = short_one.longest_sequence, fitting = short_one.longest_fitting;
  CHECK(fitting < longest);
  for (const int64_t length : {fitting, (fitting + longest) / 2 / 512 * 512, 2 * longest}) {
    const ConfigCheck check = checked_yaml(base + fmt::format("sequence_len: {}\n", length));
    CHECK(check.longest_sequence == longest);
    CHECK(check.longest_fitting == fitting);
    CHECK((check.fit == Fit::fits) == (length <= fitting));
  }
}

TEST_CASE("a model that is not in the catalog is asked for by its file", "[frameworks]") {
  CHECK_THROWS_WITH(load_model("mistralai/Mixtral-8x22B-v0.1"), Contains("give its config.json"));
}

TEST_CASE("Megatron's flags say experts and latent attention", "[frameworks]") {
  const auto flags = [](const std::string& more) {
    return "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 27 --hidden-size 2048 "
           "--num-attention-heads 16 --ffn-hidden-size 10944 --swiglu --vocab-size 102400 "
           "--untie-embeddings-and-output-weights --seq-length 4096 --micro-batch-size 1 "
           "--global-batch-size 64 --bf16 --use-distributed-optimizer --num-experts 64 "
           "--moe-router-topk 6 --moe-ffn-hidden-size 1408 --moe-shared-expert-intermediate-size "
           "2816 "
           "--moe-layer-freq '([0]*1+[1]*26)' --multi-latent-attention --kv-lora-rank 512 "
           "--qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 "
           "--expert-tensor-parallel-size 1 --make-vocab-size-divisible-by 1 " +
           more;
  };
  const ConfigReading reading = read({{"run.sh", flags("--expert-model-parallel-size 8")}});
  CHECK(reading.unknown.empty());
  const std::optional<ModelSpec> model = model_of(reading.knobs, *reading.framework);
  REQUIRE(model);
  CHECK(parameter_count(*model) == parameter_count(load_model("deepseek-v2-lite")));
  CHECK(active_parameter_count(*model) == active_parameter_count(load_model("deepseek-v2-lite")));
  const ConfigCheck check = check_config(reading, *model, load_hardware("8xh100-80g"), {});
  CHECK(check.configured.run.degrees.expert == 8);
  CHECK(check.configured.run.degrees.of_expert() == 1);
  CHECK(check.predicted.time.experts > 0);
  const auto with = [&](const std::string& more) {
    const ConfigReading other = read({{"run.sh", flags(more)}});
    return check_config(other, *model_of(other.knobs, *other.framework),
                        load_hardware("8xh100-80g"), {});
  };
  CHECK(with("--mtp-num-layers 1").configured.model.next_token_layers == 1);
  CHECK_THROWS_WITH(with("--expert-model-parallel-size 3"), Contains("cannot be divided by 3"));
}

TEST_CASE("layers with experts are read as Megatron reads them", "[frameworks]") {
  using List = std::vector<bool>;
  CHECK(expert_layers("1", 3) == List{true, true, true});
  CHECK(expert_layers("2", 4) == List{true, false, true, false});
  CHECK(expert_layers("([0]*1+[1]*3)", 4) == List{false, true, true, true});
  CHECK(expert_layers("[0, 1, 1]", 3) == List{false, true, true});
  CHECK(expert_layers("([0,1])*2", 4) == List{false, true, false, true});
  CHECK(expert_layers("1", 3, 1) == List{false, true, true});
  for (const char* wrong : {"", "[1]", "[2]*4", "[1]*", "([1]*4", "[0]*3+[1]*58", "[1]*99999999999",
                            "((((((((((((((((((((([1]*4"}) {
    CHECK_THROWS_WITH(expert_layers(wrong, 4), Contains("expected a number, or a list of 4 times"));
  }
}

TEST_CASE("verl's trainer of supervised fine-tuning is one of its own", "[frameworks]") {
  const std::string run =
      "torchrun --nproc_per_node 8 -m verl.trainer.fsdp_sft_trainer data.max_length=8192 "
      "model.partial_pretrain=meta-llama/Llama-3.1-8B data.train_batch_size=16 "
      "data.micro_batch_size_per_gpu=1 model.enable_gradient_checkpointing=true";
  const ConfigReading reading = read({{"run.sh", run}});
  CHECK(reading.framework->name == "verl-sft");
  CHECK(reading.unknown.empty());
  const ConfigCheck check =
      check_config(reading, load_model("llama-3.1-8b"), load_hardware("8xh100-80g"), {});
  CHECK(check.configured.run.global_batch == 16);
  CHECK(check.configured.run.recompute == Recompute::full);
  CHECK(check.configured.run.zero == 3);
  CHECK(check.configured.run.others.empty());
}

TEST_CASE("refusals say what is wrong", "[frameworks]") {
  CHECK_THROWS_WITH(load_framework("foo"), Contains("axolotl") && Contains("xtuner"));
  for (const char* count : {"0", "-1"}) {
    CHECK_THROWS_WITH(read({{"a.yaml", kAxolotl + "micro_batch_size: " + count}}),
                      Contains("micro_batch_size") && Contains(">= 1"));
  }
  const std::string frozen =
      "model_name_or_path: meta-llama/Llama-3.1-8B\nstage: sft\nfinetuning_type: freeze\n"
      "cutoff_len: 8192\n";
  CHECK_THROWS_WITH(checked_yaml(frozen), Contains("few layers") && !Contains("LoRA"));
}
