// longspan check: samples of many lengths, a measured speed, and the memories that tools show.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>

#include "tests/e2e/command.h"

namespace longspan::e2e {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;
using testing::TemporaryFolder;

constexpr const char* kCheckMachine = "8xh100-80g";

// A run that pads: max_length 8192, four sequences a GPU, two microbatches.
const std::string kPadded = R"(base_model: meta-llama/Llama-3.1-8B
sequence_len: 8192
micro_batch_size: 4
gradient_accumulation_steps: 2
gradient_checkpointing: true
bf16: true
cut_cross_entropy: true
deepspeed: zero3.json
)";
const std::string kZeroOnDevice =
    R"({"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}})";
const std::string kZeroOnHost =
    R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
        "bf16": {"enabled": true}})";

class Config {
 public:
  explicit Config(const std::string& text = kPadded, const std::string& zero = kZeroOnDevice)
      : path_(folder_.file("axolotl.yaml", text)) {
    folder_.file("zero3.json", zero);
  }
  std::vector<std::string> question(const std::vector<std::string>& more = {}) const {
    return joined({"check", path_, "--hw", kCheckMachine}, more);
  }
  json answer(const std::vector<std::string>& more = {}) const {
    const Result result = longspan(question(joined({"--json"}, more)));
    INFO(result.err);
    REQUIRE(result.status <= 1);
    return json::parse(result.out);
  }
  json measured(const std::string& speed, const std::vector<std::string>& more = {}) const {
    return answer(joined({"--measured", speed}, more)).at("measured");
  }
  std::string file(const std::string& name, const std::string& text) const {
    return folder_.file(name, text);
  }

 private:
  TemporaryFolder folder_;
  std::string path_;
};

double step_of(const json& answer) { return answer.at("step_seconds"); }
double device_of(const json& answer) { return answer.at("peak_bytes").at("device"); }
std::string seconds_text(double seconds) { return fmt::format("{:.9f}s/it", seconds); }

// The explanation whose text contains `what`; null if there is none.
json explanation(const json& measured, const std::string& what) {
  for (const json& e : measured.at("explanations")) {
    if (e.at("what").get<std::string>().find(what) != std::string::npos) return e;
  }
  return {};
}

TEST_CASE("check names the three memories, with a range for each") {
  const Config config;
  const json answer = config.answer();
  const json& peak = answer.at("peak_bytes");
  CHECK(peak.at("allocated") <= peak.at("reserved"));
  CHECK(peak.at("reserved") < peak.at("device"));
  for (const char* memory : {"allocated", "reserved", "device"}) {
    const json& range = answer.at("peak_bytes_ranges").at(memory);
    CHECK(range[0] < peak.at(memory));
    CHECK(peak.at(memory) < range[1]);
  }
  const Result text = longspan(config.question());
  for (const char* word : {"GiB allocated", "reserved", "in nvidia-smi"}) {
    CHECK_THAT(text.out, Contains(word));
  }
}

TEST_CASE("check says the host's memory where states wait there") {
  const Config on_device, on_host(kPadded, kZeroOnHost);
  CHECK_THAT(longspan(on_device.question()).out, !Contains("\n  host "));
  CHECK_THAT(longspan(on_host.question()).out, Contains("\n  host "));
  const json answer = on_host.answer();
  const double states = 8e9 * 12;
  CHECK(answer.at("host_bytes") > states);
  CHECK(answer.at("host_bytes") < answer.at("host_capacity_bytes"));
}

TEST_CASE("check names the models besides the actor and their memory") {
  const TemporaryFolder folder;
  const std::string script = folder.file("run.sh", R"(python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=gae actor_rollout_ref.model.path=meta-llama/Llama-3.1-8B \
    data.train_batch_size=256 data.max_prompt_length=1024 data.max_response_length=1024 \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 actor_rollout_ref.rollout.n=2 \
    critic.model.path=meta-llama/Llama-3.1-8B critic.ppo_micro_batch_size_per_gpu=1
)");
  const std::vector<std::string> question{"check", script, "--hw", kCheckMachine};
  const Result text = longspan(question);
  CHECK(text.status <= 1);
  CHECK_THAT(text.out, Contains("reference (host), critic"));
  CHECK_THAT(text.out, Contains("generation is not predicted, 4 updates a step"));
  const json answer = json::parse(longspan(joined(question, {"--json"})).out);
  CHECK(answer.at("step_sequences") == 512);
  CHECK(answer.at("step_updates") == 4);
  const json models = answer.at("models");
  REQUIRE(models.size() == 2);
  CHECK(models[0] == json{{"role", "reference"}, {"place", "host"}, {"trained", false}});
  CHECK(models[1] == json{{"role", "critic"}, {"place", "device"}, {"trained", true}});
  // Parameters and two moments in single precision, a column of values for the vocabulary.
  const double parameters = 8.03e9 - 128256.0 * 4096 + 4096;
  CHECK(answer.at("breakdown").at("critic").get<double>() ==
        Approx(12 * parameters / 8).epsilon(0.001));
  double sum = 0;
  for (const auto& [part, bytes] : answer.at("breakdown").items()) sum += bytes.get<double>();
  CHECK(sum == Approx(answer.at("peak_bytes").at("device").get<double>()));
  CHECK(answer.at("step_breakdown").at("forward passes") > 0);
  CHECK(answer.at("step_breakdown").at("updates of the critic") > 0);
}

TEST_CASE("the predicted speed is normal in every unit") {
  const Config config;
  const json answer = config.answer();
  const double step = step_of(answer);
  const double tokens = answer.at("tokens_per_second_per_gpu");
  const double mfu = answer.at("mfu_full_attention");
  const double teraflops = mfu * 989.4;  // the peak of an H100
  for (const std::string& speed :
       {seconds_text(step), fmt::format("{:.9f} it/s", 1 / step),
        fmt::format("{:.6f}tok/s/gpu", tokens), fmt::format("{:.6f} tokens/s", 8 * tokens),
        fmt::format("MFU {:.6f}%", 100 * mfu), fmt::format("{:.6f}TFLOPS", teraflops)}) {
    CAPTURE(speed);
    const json measured = config.measured(speed);
    CHECK(measured.at("position") == "within");
    CHECK(measured.at("seconds").get<double>() == Approx(step).epsilon(0.001));
    CHECK(measured.at("explanations").empty());
  }
  const Result text = longspan(config.question({"--measured", seconds_text(step)}));
  CHECK_THAT(text.out, Contains("normal") && Contains("bound by") && !Contains("may be"));
}

TEST_CASE("the range divides normal speeds from others") {
  const Config config;
  const json range = config.answer().at("step_seconds_range");
  const double low = range[0], high = range[1];
  CHECK(config.measured(seconds_text(low * 1.001)).at("position") == "within");
  CHECK(config.measured(seconds_text(high * 0.999)).at("position") == "within");
  CHECK(config.measured(seconds_text(low * 0.999)).at("position") == "faster");
  CHECK(config.measured(seconds_text(high * 1.001)).at("position") == "slower");
}

TEST_CASE("what explains a slow step is predicted, as the config that says it is") {
  const std::string light =
      replaced(replaced(kPadded, "micro_batch_size: 4", "micro_batch_size: 1"), "8192", "2048");
  const Config config(replaced(light, "gradient_checkpointing: true\n", ""));
  const double step = step_of(config.answer());
  const json measured = config.measured(seconds_text(1.5 * step));
  CHECK(measured.at("position") == "slower");
  int64_t compared = 0;
  for (const json& e : measured.at("explanations")) {
    const std::string setting = e.at("setting");
    if (setting.empty() || setting.find('.') != std::string::npos) continue;
    CAPTURE(setting);
    const Config other(replaced(light, "gradient_checkpointing: true\n", "") + setting + "\n");
    CHECK(step_of(other.answer()) == Approx(e.at("predicted_seconds").get<double>()));
    ++compared;
  }
  CHECK(compared >= 2);
  CHECK(explanation(measured, "full recomputation").at("setting") ==
        "gradient_checkpointing: true");
  CHECK_FALSE(explanation(measured, "without a fused kernel").is_null());
  CHECK(explanation(measured, "no setting explains").at("fitted") == true);
}

TEST_CASE("explanations are nearer than the prediction, the nearest first") {
  const Config config;
  const double step = step_of(config.answer());
  for (const double times : {0.2, 0.5, 1.6, 3.0, 20.0}) {
    CAPTURE(times);
    const double seconds = times * step;
    const json measured = config.measured(seconds_text(seconds));
    double before = 0;
    for (const json& e : measured.at("explanations")) {
      CAPTURE(e.dump());
      const double predicted = e.at("predicted_seconds");
      const double distance = std::abs(std::log(predicted / seconds));
      CHECK(distance < std::abs(std::log(times)));
      if (e.at("fitted").get<bool>()) {
        CHECK(predicted == Approx(seconds));
        continue;
      }
      CHECK(distance >= before);
      CHECK((predicted > step) == (times > 1));
      before = distance;
    }
  }
}

TEST_CASE("what the config rules out explains nothing") {
  const Config config(kPadded + "attn_implementation: flash_attention_2\n");
  const double step = step_of(config.answer());
  const json measured = config.measured(seconds_text(2 * step));
  std::string ruled_out;
  for (const json& cause : measured.at("ruled_out")) {
    ruled_out += cause.at("what").get<std::string>() + ": " + cause.at("why").get<std::string>();
    CHECK(explanation(measured, cause.at("what")).is_null());
  }
  CHECK_THAT(ruled_out, Contains("without a fused kernel: attn_implementation is set"));
  CHECK_THAT(ruled_out, Contains("full recomputation: the run has it"));
}

TEST_CASE("a figure that was counted otherwise is recognized") {
  const Config config;
  const json answer = config.answer();
  const double step = step_of(answer), tokens = answer.at("tokens_per_second_per_gpu");
  const json of_all = config.measured(fmt::format("{:.3f}tok/s/gpu", 8 * tokens));
  CHECK(of_all.at("explanations")[0].at("what") == "the figure is of all GPUs, not of one");
  CHECK(of_all.at("explanations")[0].at("predicted_seconds").get<double>() == Approx(step / 8));
  const json of_one = config.measured(fmt::format("{:.3f}tok/s", tokens));
  CHECK(of_one.at("explanations")[0].at("what") == "the figure is of one GPU, not of all");
  const json iteration = config.measured(seconds_text(step / 2));
  CHECK_FALSE(explanation(iteration, "one microbatch, and a step has 2").is_null());
}

TEST_CASE("a fast step of a run that pads has samples of the length that it says") {
  const Config config;
  const double seconds = 0.4 * step_of(config.answer());
  const json batches = explanation(config.measured(seconds_text(seconds)), "batches of");
  REQUIRE_FALSE(batches.is_null());
  std::string length = batches.at("what").get<std::string>().substr(11);
  length = replaced(length.substr(0, length.find(' ')), ",", "");
  CHECK(step_of(config.answer({"--seq", length})) == Approx(seconds).epsilon(0.03));
}

TEST_CASE("--lengths answers for the longest sample and for a typical one") {
  const Config config;
  const std::string lengths = "1024:900,2048:90,6144:10";
  const json answer = config.answer({"--lengths", lengths});
  const json& l = answer.at("lengths");
  CHECK(l.at("given") == true);
  CHECK(l.at("packed") == false);
  CHECK(l.at("mean_tokens").get<double>() == Approx(1024 * 0.9 + 2048 * 0.09 + 6144 * 0.01));
  CHECK(l.at("longest").at("tokens") == 6144);
  const json longest = config.answer({"--seq", "6144"});
  CHECK(device_of(answer) == Approx(device_of(longest)));
  CHECK(answer.at("verdict") == longest.at("verdict"));
  CHECK(l.at("longest").at("peak_device_bytes").get<double>() == Approx(device_of(answer)));
  const int64_t typical = l.at("typical").at("tokens");
  CHECK(typical > l.at("mean_tokens"));
  CHECK(typical < 2048);
  CHECK(l.at("typical").at("peak_device_bytes").get<double>() ==
        Approx(device_of(config.answer({"--seq", std::to_string(typical)}))));
  // The step waits for the longest of all ranks' samples; its tokens are those of the samples.
  const int64_t step = l.at("step_tokens_padded_to");
  CHECK(step > typical);
  CHECK(step_of(answer) == Approx(step_of(config.answer({"--seq", std::to_string(step)}))));
  const double batch = answer.at("global_batch_sequences");
  CHECK(answer.at("tokens_per_second_per_gpu").get<double>() ==
        Approx(batch * l.at("mean_tokens").get<double>() / 8 / step_of(answer)));
  const Result text = longspan(config.question({"--lengths", lengths}));
  CHECK_THAT(text.out, Contains("longest 6K: fits") && Contains("(longest of 4): fits"));
}

TEST_CASE("samples of one length are answered as that length") {
  const Config config;
  const json as_length = config.answer({"--seq", "2048"});
  for (const char* lengths : {"mean=2048", "2048:7"}) {
    CAPTURE(lengths);
    const json answer = config.answer({"--lengths", lengths});
    CHECK(step_of(answer) == Approx(step_of(as_length)));
    for (const char* figure : {"tokens_per_second_per_gpu", "mfu", "mfu_full_attention"}) {
      CHECK(answer.at(figure).get<double>() == Approx(as_length.at(figure).get<double>()));
    }
  }
  // A mean leaves max_length as the bound of the longest.
  CHECK(device_of(config.answer({"--lengths", "mean=2048"})) == Approx(device_of(config.answer())));
  CHECK(device_of(config.answer({"--lengths", "2048:7"})) == Approx(device_of(as_length)));
}

TEST_CASE("longer samples are cut off at max_length") {
  const json answer = Config().answer({"--lengths", "1024:3,20000:1"});
  CHECK(answer.at("lengths").at("longest").at("tokens") == 8192);
  CHECK(answer.at("lengths").at("cut_share").get<double>() == Approx(0.25));
  CHECK(answer.at("lengths").at("mean_tokens").get<double>() == Approx((3 * 1024 + 8192) / 4.0));
}

TEST_CASE("a run that packs has full sequences, whatever the lengths") {
  const Config config(kPadded + "sample_packing: true\n");
  const json full = config.answer(), answer = config.answer({"--lengths", "1024:3,4096:1"});
  CHECK(answer.at("lengths").at("packed") == true);
  CHECK(step_of(answer) == step_of(full));
  CHECK(device_of(answer) == device_of(full));
  CHECK(answer.at("tokens_per_second_per_gpu") == full.at("tokens_per_second_per_gpu"));
  const double separate = answer.at("lengths").at("step_seconds_if_separate");
  CHECK(separate < step_of(full));
  CHECK(separate > 0.5 * step_of(full));
  CHECK_THAT(longspan(config.question({"--lengths", "mean=1024"})).out, Contains("packed"));
  CHECK_THAT(longspan(config.question()).out, !Contains("--lengths"));
  // Without lengths, a run that pads says which samples its answer is for.
  CHECK_THAT(longspan(Config().question()).out, Contains("samples of 8K") && Contains("--lengths"));
}

TEST_CASE("lengths in a file are those on the command line") {
  const Config config;
  const json given = config.answer({"--lengths", "1024:2,4096:1"});
  for (const char* text : {"1024\n4096\n1024\n", "1024 2\n4096 1\n", "[1024, 1024, 4096]",
                           "{\"length\": 1024}\n{\"length\": 4096}\n{\"length\": 1024}\n"}) {
    CAPTURE(text);
    const json answer = config.answer({"--lengths", config.file("lengths.txt", text)});
    CHECK(answer.at("lengths") == given.at("lengths"));
    CHECK(step_of(answer) == step_of(given));
  }
}

TEST_CASE("speeds and lengths that say nothing are refused in one line") {
  const Config config;
  const auto refuses = [&](const std::vector<std::string>& flags,
                           const std::vector<std::string>& texts) {
    check_refused(longspan(config.question(flags)), 2, texts);
  };
  refuses({"--measured", "1850"}, {"--measured", "1850", "no unit"});
  refuses({"--measured", "5 furlongs"}, {"--measured", "unknown unit"});
  refuses({"--measured", "0tok/s"}, {"--measured", "zero"});
  refuses({"--measured=-2s/it"}, {"--measured", "negative"});
  refuses({"--measured", ""}, {"--measured"});
  refuses({"--lengths", "mean=0"}, {"--lengths", "zero"});
  refuses({"--lengths", "0:5"}, {"--lengths", "zero"});
  refuses({"--lengths", "missing.txt"}, {"--lengths", "no file", "missing.txt"});
  refuses({"--lengths", ""}, {"--lengths"});
  const std::string empty = config.file("empty.txt", ""), zero = config.file("zero.txt", "5\n0\n");
  refuses({"--lengths", empty}, {"empty.txt"});
  refuses({"--lengths", zero}, {"zero.txt:2"});
  refuses({"--lengths", "/dev"}, {"/dev"});
}

TEST_CASE("check needs of the host what waits there and some for each process") {
  TemporaryFolder folder;
  const std::string config = folder.file("train.yaml", R"(model_name_or_path: Qwen/Qwen3-0.6B
max_length: 2048
per_device_train_batch_size: 1
bf16: true
)");
  const auto ask = [&](const std::vector<std::string>& more) {
    return longspan(joined({"check", config, "--framework", "trl"}, more));
  };
  const json one = json::parse(ask({"--hw", "workstation", "--gpus", "1", "--json"}).out);
  CHECK(one.at("verdict") == "fits");
  CHECK(one.at("host_bytes") < 8e9);
  const json four = json::parse(ask({"--hw", "4xrtx-4090", "--json"}).out);
  CHECK(four.at("host_bytes") == Approx(4 * one.at("host_bytes").get<double>()));
  const std::string host = "--host-memory";
  CHECK_THAT(ask({"--hw", "rtx-4090", host, "4GiB"}).out,
             Contains("out of memory: the host is short by"));
  CHECK_THAT(ask({"--hw", "rtx-4090", host, "5.8GiB"}).out,
             Contains("at risk") && Contains("of a node's 5.80 GiB in host memory"));
}

TEST_CASE("hybrid sharding shares states among the GPUs of a node") {
  TemporaryFolder folder;
  const auto memory = [&](const std::string& strategy, const std::string& hw) {
    const std::string config = folder.file("sft.yaml", R"(base_model: meta-llama/Llama-3.1-8B
sequence_len: 4096
micro_batch_size: 1
bf16: true
gradient_checkpointing: true
flash_attention: true
fsdp_version: 1
fsdp_config:
  sharding_strategy: )" + strategy + "\n");
    const json answer = json::parse(longspan({"check", config, "--hw", hw, "--json"}).out);
    return answer.at("peak_bytes").at("device").get<double>();
  };
  constexpr double kStates = 8.03e9 * 8;  // at least, of all parameters
  const double over_all = memory("FULL_SHARD", "4x8xh100-80g");
  CHECK(memory("HYBRID_SHARD", "4x8xh100-80g") - over_all > 3 * kStates / 32);
  CHECK(memory("HYBRID_SHARD", "8xh100-80g") == memory("FULL_SHARD", "8xh100-80g"));
}

TEST_CASE("check says in which step the memory runs out") {
  TemporaryFolder folder;
  const std::string config =
      folder.file("train.yaml", R"(model_name_or_path: meta-llama/Llama-3.1-8B
model_max_length: 32768
per_device_train_batch_size: 1
gradient_checkpointing: true
bf16: true
)");
  const auto ask = [&](double memory, const std::vector<std::string>& more) {
    return longspan(joined({"check", config, "--framework", "transformers", "--hw", "h200-141g",
                            "--device-memory", std::to_string(static_cast<int64_t>(memory))},
                           more));
  };
  const auto answer = [&](double memory) { return json::parse(ask(memory, {"--json"}).out); };
  const json fits = answer(1e12);
  CHECK(fits.at("runs_out") == "");
  CHECK(fits.at("peak_moment") == "the loss");
  // Without the optimizer's states the first backward would fit, and the update makes them.
  const double peak = fits.at("peak_bytes").at("device");
  CHECK(answer(0.99 * peak).at("runs_out") == "second step");
  CHECK(answer(0.7 * peak).at("runs_out") == "update");
  CHECK(answer(0.3 * peak).at("runs_out") == "first step");
  CHECK(answer(0.1 * peak).at("runs_out") == "start");
  CHECK_THAT(ask(0.99 * peak, {}).out,
             Contains("runs out in the second step, when the optimizer's states are there"));
  CHECK_THAT(ask(0.7 * peak, {}).out, Contains("runs out in the first update"));
  CHECK_THAT(ask(0.1 * peak, {}).out,
             Contains("runs out before the first step, with the states alone"));
}

}  // namespace
}  // namespace longspan::e2e
