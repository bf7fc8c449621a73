// The changes that check proposes for a config that does not fit.
#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>
#include <string>

#include "base/error.h"
#include "frameworks/check/check_config.h"
#include "frameworks/prediction_interval.h"
#include "frameworks/read/read_config.h"
#include "frameworks/search/framework_search.h"
#include "hwprofiles/catalog.h"
#include "models/catalog.h"

using namespace longspan;

namespace {

std::string value_of(const ProposedChange& change, const std::string& key) {
  for (const ChangedKey& setting : change.changed) {
    if (setting.key == key) return setting.value;
  }
  return "";
}

ConfigCheck checked(const std::string& name, const std::string& text, const std::string& hw) {
  const ConfigReading reading = read_config(
      {{name, text}}, "", [](const std::string&) { return std::optional<std::string>(); });
  return check_config(reading, load_model("qwen3-32b"), load_hardware(hw), {});
}

bool any(const ConfigCheck& check, const std::string& key, const std::string& value) {
  return std::any_of(check.changes.begin(), check.changes.end(),
                     [&](const ProposedChange& c) { return value_of(c, key) == value; });
}

}  // namespace

TEST_CASE("fewer sequences at a time are proposed, whatever a framework's space has",
          "[frameworks]") {
  const ConfigCheck check = checked("train.toml",
                                    "[model]\nname = 'qwen3'\nflavor = '32B'\n"
                                    "[parallelism]\ndata_parallel_shard_degree = 16\n"
                                    "[training]\nlocal_batch_size = 8\nseq_len = 4096\n"
                                    "[activation_checkpoint]\nmode = 'full'\n",
                                    "2x8xh100-96g");
  REQUIRE(check.fit != Fit::fits);
  CHECK(any(check, "training.local_batch_size", "4"));
  // A degree that the config states next to the ranks that share states changes both.
  for (const ProposedChange& change : check.changes) {
    if (value_of(change, "parallelism.context_parallel_degree") != "2") continue;
    CHECK(value_of(change, "parallelism.data_parallel_shard_degree") == "8");
  }
}

TEST_CASE("microbatches of half the size are twice as many", "[frameworks]") {
  const ConfigCheck check = checked("train.yaml",
                                    "model_name_or_path: Qwen/Qwen3-32B\nstage: sft\n"
                                    "finetuning_type: full\ncutoff_len: 16384\nbf16: true\n"
                                    "deepspeed: ds_z3_config.json\n"
                                    "per_device_train_batch_size: 4\n"
                                    "gradient_accumulation_steps: 2\n",
                                    "2x8xh100-80g");
  REQUIRE(check.fit != Fit::fits);
  for (const ProposedChange& change : check.changes) {
    if (value_of(change, "per_device_train_batch_size") != "1") continue;
    CHECK(value_of(change, "gradient_accumulation_steps") == "8");
  }
}

namespace {

using Files = std::vector<ConfigText>;

struct Answer {
  ConfigReading reading;
  ConfigCheck check;
  std::vector<std::string> texts;  // of the changes
};

Answer answer_to(const Files& files, const std::string& model, const std::string& hw,
                 const CheckOptions& options = {}) {
  Answer answer;
  answer.reading =
      read_config(files, "", [](const std::string&) { return std::optional<std::string>(); });
  answer.check = check_config(answer.reading, load_model(model), load_hardware(hw), options);
  for (const ProposedChange& change : answer.check.changes) {
    answer.texts.push_back(change_text(answer.reading, change.keys));
  }
  return answer;
}

bool says(const Answer& answer, const std::string& part) {
  return std::any_of(answer.texts.begin(), answer.texts.end(),
                     [&](const std::string& text) { return text.find(part) != std::string::npos; });
}

// 70 billion parameters on 64 GPUs, without a distributed optimizer.
const char* const kMegatron =
    "torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py --num-layers 80 --hidden-size 8192 "
    "--ffn-hidden-size 28672 --num-attention-heads 64 --group-query-attention "
    "--num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1 "
    "--global-batch-size 256 --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 "
    "--bf16 --swiglu --untie-embeddings-and-output-weights --vocab-size 128256\n";

}  // namespace

TEST_CASE("changes that fit come first, the fastest of them first", "[frameworks]") {
  const Answer answer = answer_to({{"run.sh", kMegatron}}, "llama-3.1-70b", "64xh100-80g");
  const std::vector<ProposedChange>& changes = answer.check.changes;
  REQUIRE(changes.size() > 3);
  CHECK(changes.front().fit == Fit::fits);
  for (size_t i = 1; i < changes.size(); ++i) {
    CHECK(changes[i - 1].fit <= changes[i].fit);
    if (changes[i].fit == changes[i - 1].fit && changes[i].fit != Fit::does_not_fit) {
      CHECK(changes[i - 1].paid_seconds <= changes[i].paid_seconds);
    }
  }
  CHECK(says(answer, "--use-distributed-optimizer"));
  // A tensor group over nodes is not needed here.
  for (const char* degree : {"16", "32", "64"}) {
    CHECK_FALSE(says(answer, std::string("--tensor-model-parallel-size ") + degree));
  }
}

TEST_CASE("a change keeps the sequences of a step", "[frameworks]") {
  const std::string config =
      "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 65536\nbf16: true\nfsdp_version: 2\n"
      "fsdp_config:\n  auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  reshard_after_forward: true\n"
      "micro_batch_size: 2\ngradient_accumulation_steps: 2\nflash_attention: true\n";
  const Answer answer = answer_to({{"axolotl.yaml", config}}, "llama-3.1-8b", "8xh100-80g");
  REQUIRE(answer.check.fit == Fit::does_not_fit);
  CHECK(says(answer, "micro_batch_size: 1, gradient_accumulation_steps: 4"));
  CHECK(says(answer, "context_parallel_size: 8, gradient_accumulation_steps: 16"));
  for (const ProposedChange& change : answer.check.changes) {
    CHECK(change.keeps_batch);
    CHECK(change.sequences == answer.check.configured.run.step_sequences());
  }
  // A change that fits is faster at the same batch, not by a larger one.
  const Answer fits = answer_to(
      {{"axolotl.yaml", config + "gradient_checkpointing: true\nactivation_offloading: true\n"}},
      "llama-3.1-8b", "8xh200-141g");
  for (const ProposedChange& change : fits.check.changes) CHECK(change.keeps_batch);
}

TEST_CASE("a change is in words of the key that the config has", "[frameworks]") {
  const std::string config =
      "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 4096\nbf16: true\nfsdp_version: 2\n"
      "fsdp_config:\n  auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  reshard_after_forward: true\n"
      "micro_batch_size: 1\ngradient_checkpointing: offload\n";
  const Answer answer = answer_to({{"axolotl.yaml", config}}, "llama-3.1-8b", "8xh100-80g");
  REQUIRE(answer.check.fit == Fit::fits);
  CHECK(says(answer, "gradient_checkpointing: true"));
  CHECK_FALSE(says(answer, "without activation_offloading"));
}

TEST_CASE("a file that a framework ships is replaced, not changed", "[frameworks]") {
  const Answer answer =
      answer_to({{"run.sh",
                  "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-32B --train_type full "
                  "--max_length 4096 --torch_dtype bfloat16 --attn_impl flash_attn "
                  "--per_device_train_batch_size 1 --deepspeed zero2\n"}},
                "qwen3-32b", "8xh100-80g");
  CHECK(says(answer, "--deepspeed zero3"));
  CHECK_FALSE(says(answer, "zero_optimization"));
  // FSDP recomputes as before.
  for (const ProposedChange& change : answer.check.changes) {
    if (value_of(change, "fsdp") != "fsdp.json") continue;
    CHECK(value_of(change, "deepspeed").empty());
    CHECK(value_of(change, "fsdp.fsdp_config.activation_checkpointing") == "true");
  }
}

TEST_CASE("a change names the files that its keys go to", "[frameworks]") {
  const Answer answer =
      answer_to({{"run.sh",
                  "trl sft --model_name_or_path Qwen/Qwen3-8B --dataset_name x --max_length 4096 "
                  "--bf16 true --per_device_train_batch_size 1\n"}},
                "qwen3-8b", "8xh100-80g");
  REQUIRE(answer.check.fit == Fit::does_not_fit);
  CHECK(says(answer, "new accelerate.yaml: "));
  CHECK(says(answer, "new ds_config.json: "));
}

TEST_CASE("a list is changed as a whole", "[frameworks]") {
  const Answer answer =
      answer_to({{"neox.yml",
                  "num-layers: 44\nhidden-size: 6144\nnum-attention-heads: 64\nseq-length: 2048\n"
                  "max-position-embeddings: 2048\npos-emb: rotary\npipe-parallel-size: 4\n"
                  "model-parallel-size: 2\ntrain_micro_batch_size_per_gpu: 4\n"
                  "gradient_accumulation_steps: 32\nzero_optimization: {stage: 1}\n"
                  "fp16: {enabled: true}\ncheckpoint-activations: false\n"}},
                "llama-2-13b", "4x8xa100-40g");
  CHECK(says(answer, "[[[\"flash\"], \"all\"]]"));
  CHECK_FALSE(says(answer, ".0.0.0"));
}

TEST_CASE("keys that say one count change together", "[frameworks]") {
  const Answer answer =
      answer_to({{"run.sh",
                  "deepspeed --num_gpus 8 pretrain_gpt.py --deepspeed --deepspeed_config ds.json "
                  "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 8192 "
                  "--max-position-embeddings 8192 --micro-batch-size 4 --global-batch-size 256 "
                  "--bf16 --zero-stage 1 --no-pipeline-parallel\n"},
                 {"ds.json",
                  "{\"train_batch_size\": 256, \"train_micro_batch_size_per_gpu\": 4, "
                  "\"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 1}}"}},
                "llama-2-7b", "8xa100-40g");
  bool any = false;
  for (const ProposedChange& change : answer.check.changes) {
    const std::string flag = value_of(change, "micro_batch_size");
    if (flag.empty()) continue;
    any = true;
    CHECK(value_of(change, "deepspeed_config.train_micro_batch_size_per_gpu") == flag);
  }
  CHECK(any);
}

TEST_CASE("offload to the host is proposed where a key says it", "[frameworks]") {
  const std::string config =
      "[model]\nname = 'qwen3'\nflavor = '8B'\n[training]\nlocal_batch_size = 1\n"
      "seq_len = 4096\n[activation_checkpoint]\nmode = 'full'\n";
  const Answer answer = answer_to({{"t.toml", config}}, "qwen3-8b", "4xrtx-4090");
  REQUIRE_FALSE(answer.check.changes.empty());
  CHECK(answer.check.changes.front().fit == Fit::fits);
  CHECK(answer.texts.front() == "training.enable_cpu_offload: true");
}

TEST_CASE("another engine is proposed with what it needs to run the same", "[frameworks]") {
  const std::string verl =
      "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=256 "
      "data.max_prompt_length=1024 data.max_response_length=7168 "
      "actor_rollout_ref.model.path=Qwen/Qwen3-8B "
      "actor_rollout_ref.model.enable_gradient_checkpointing=True "
      "actor_rollout_ref.actor.use_kl_loss=True "
      "actor_rollout_ref.actor.ppo_mini_batch_size=64 "
      "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 "
      "actor_rollout_ref.rollout.n=8 trainer.n_gpus_per_node=8 trainer.nnodes=1\n";
  const Answer answer = answer_to({{"run.sh", verl}}, "qwen3-8b", "8xh100-80g");
  for (const ProposedChange& change : answer.check.changes) {
    const ConfigReading changed = read_changed(answer.reading, change.changed);
    if (changed.knobs.is("engine", "megatron")) CHECK(changed.knobs.is("recompute", "full"));
  }
  // A key that decides before model_engine is there: model_engine changes nothing.
  const std::string decided =
      verl.substr(0, verl.size() - 1) + " actor_rollout_ref.actor.strategy=fsdp2\n";
  CHECK_FALSE(says(answer_to({{"run.sh", decided}}, "qwen3-8b", "8xh100-80g"), "model_engine"));
}

TEST_CASE("FSDP next to DeepSpeed is refused", "[frameworks]") {
  const auto refusal = [](const Files& files) -> std::string {
    try {
      answer_to(files, "llama-3.1-8b", "8xh100-80g");
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  using Catch::Matchers::Contains;
  CHECK_THAT(refusal({{"run.sh",
                       "swift sft --model meta-llama/Llama-3.1-8B --train_type full "
                       "--max_length 4096 --deepspeed zero3 --fsdp fsdp2\n"}}),
             Contains("--fsdp xxx together with --deepspeed"));
  CHECK_THAT(refusal({{"axolotl.yaml",
                       "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 4096\n"
                       "micro_batch_size: 1\nfsdp_version: 2\ndeepspeed: zero3.json\n"
                       "fsdp_config:\n  auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"}}),
             Contains("deepspeed and fsdp cannot be used together"));
}

TEST_CASE("a cause of a slow step is named by a key that the config can have", "[frameworks]") {
  CheckOptions options;
  options.measured = parse_measured_speed("1000tok/s/gpu", "--measured");
  const Answer answer =
      answer_to({{"train.yaml",
                  "model_name_or_path: meta-llama/Llama-3.1-8B\nmax_length: 4096\n"
                  "bf16: true\nper_device_train_batch_size: 1\nassistant_only_loss: true\n"
                  "gradient_checkpointing: true\n"},
                 {"accelerate.yaml",
                  "distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config:\n"
                  "  fsdp_version: 2\n  fsdp_reshard_after_forward: true\n"}},
                "llama-3.1-8b", "4x8xh100-80g", options);
  REQUIRE(answer.check.speed);
  for (const SpeedExplanation& e : answer.check.speed->explanations) {
    CHECK(e.setting.find("zero_optimization") == std::string::npos);
  }
}

TEST_CASE("the fastest settings of a framework fit by check's verdict", "[frameworks]") {
  const ModelSpec model = load_model("llama-3.1-8b");
  const HardwareProfile hw = load_hardware("8xh100-80g");
  for (const char* framework : {"trl", "axolotl", "torchtitan"}) {
    CAPTURE(framework);
    const FrameworkQuestion question = question_of(load_framework(framework), {}, model, hw);
    const std::optional<FrameworkPlan> plan = fastest_on(question, 32768);
    REQUIRE(plan);
    const PredictionInterval& range =
        published_intervals().memory_under(plan->configured.stack.family).all;
    CHECK(verdict_of(plan->predicted.needs, hw, range, 0) == Fit::fits);
  }
}
