// models besides the trained one: what they hold, when a GPU is fullest, and what a step takes.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "frameworks/knobs/configured_run.h"
#include "frameworks/knobs/spelling.h"
#include "frameworks/model/other_models.h"
#include "frameworks/model/partition.h"
#include "hwprofiles/catalog.h"
#include "models/catalog.h"

using namespace longspan;

namespace {

struct StepCase {
  ModelSpec model = load_model("llama-3.1-8b");
  HardwareProfile hw = load_hardware("8xh100-80g");
  Stack stack = load_stack("hf-fsdp");
  TrainingRun run;

  StepCase() {
    run.gpus = 8;
    run.stack = "hf-fsdp";
    run.precision = "bf16";
    run.sequence = 2048;
    run.microbatch = 2;
    run.global_batch = 64;
    run.degrees.data = 8;
    run.zero = 3;
    run.recompute = Recompute::full;
  }
  RunMemory alone() const { return run_memory(run, model, hw, stack); }
  RunMemory memory() const { return step_memory(run, model, hw, stack); }
  RunTime time() const { return step_time(run, model, hw, stack); }
};

// Parameters of llama-3.1-8b with one output instead of its vocabulary.
double value_parameters(const ModelSpec& m) {
  return static_cast<double>(parameter_count(m) - m.vocab * m.hidden + m.hidden);
}

RunKnobs knobs_of_learning() {
  RunKnobs knobs;
  for (const auto& [knob, value] : KnobValues{{"engine", "fsdp1"},
                                              {"zero", "3"},
                                              {"task", "rl"},
                                              {"sequence", "2048"},
                                              {"microbatch", "2"},
                                              {"batch", "32"}}) {
    knobs.set(knob, value);
  }
  return knobs;
}

ConfiguredRun configured_learning(const RunKnobs& knobs) {
  const Framework& framework = load_framework("verl");
  return configure(knobs, framework, load_model("llama-3.1-8b"), load_hardware("8xh100-80g"),
                   [&](const std::string& knob) { return name_of_knob(framework, knob); });
}

}  // namespace

TEST_CASE("a frozen reference model adds its parameters and a forward pass", "[others]") {
  StepCase s;
  const RunMemory alone = s.alone();
  const RunTime once = run_time(s.run, s.model, s.hw, s.stack);
  CHECK(s.memory().tensors() == alone.tensors());
  CHECK(s.time().step() == Approx(once.step()));
  s.run.others = {{.role = ModelRole::reference}};
  const RunMemory both = s.memory();
  REQUIRE(both.others.size() == 1);
  CHECK(both.others[0].model == "reference");
  CHECK(both.others[0].bytes == Approx(4.0 * static_cast<double>(parameter_count(s.model)) / 8));
  CHECK(both.tensors() == Approx(alone.tensors() + both.others[0].bytes));
  const RunTime time = s.time();
  CHECK(time.compute == once.compute);
  // Full recomputation makes a step of four forward passes.
  CHECK(time.passes == Approx(once.step() / 4).epsilon(0.2));
  s.run.others[0].passes = 2;
  CHECK(s.time().passes == Approx(2 * time.passes));

  // After the trained model's own forward, which has saved its activations.
  s.run.others[0].place = ModelPlace::joint;
  CHECK(s.memory().moment == StepMoment::reference);
  CHECK(s.memory().held() == Approx(both.held()));
  s.run.others[0].place = ModelPlace::host;
  CHECK(s.memory().tensors() == alone.tensors());
  CHECK(s.memory().waiting == Approx(both.others[0].bytes));
  CHECK(s.time().host > once.host);
  // The model itself without its adapter needs a pass, and nothing else.
  s.run.others[0].place = ModelPlace::actor;
  CHECK(s.memory().tensors() == alone.tensors());
  CHECK(s.memory().waiting == 0);
  CHECK(s.time().passes == Approx(2 * time.passes));
}

TEST_CASE("a model of values has a column in place of the vocabulary", "[others]") {
  StepCase s;
  const RunMemory logits = s.alone();
  s.run.outputs = 1;
  const RunMemory value = s.alone();
  CHECK(value.parameters == Approx(4 * value_parameters(s.model) / 8));
  CHECK(value.optimizer == Approx(8 * value_parameters(s.model) / 8));
  CHECK(value.loss < 0.01 * logits.loss);
  // A tied embedding stays, as tokens are its rows.
  ModelSpec tied = s.model;
  tied.tied_embeddings = true;
  CHECK(rank_parameters(s.run, tied) == Approx(value_parameters(s.model)));
}

TEST_CASE("a critic has states of its own and is updated in turn", "[others]") {
  StepCase s;
  const RunMemory alone = s.alone();
  s.run.others = {{.role = ModelRole::critic}};
  const double waiting = 12 * value_parameters(s.model) / 8;
  const RunMemory resident = s.memory();
  CHECK(resident.held() == Approx(waiting));
  CHECK(resident.tensors() == Approx(alone.tensors() + waiting));

  s.run.others[0].place = ModelPlace::process;
  const RunMemory process = s.memory();
  CHECK(process.tensors() == Approx(resident.tensors()));
  CHECK(device_bytes(process, s.stack) ==
        Approx(device_bytes(resident, s.stack) + s.stack.context_bytes.value));

  // A larger microbatch makes its update the fullest moment, with the actor waiting.
  s.run.others[0] = {.role = ModelRole::critic, .place = ModelPlace::host, .microbatch = 32};
  const RunMemory of_critic = s.memory();
  CHECK(of_critic.of_critic);
  REQUIRE(of_critic.others.size() == 1);
  CHECK(of_critic.others[0].model == "actor");
  CHECK(of_critic.others[0].bytes == Approx(alone.parameters + alone.optimizer));
  // Both wait on the host: only one is on the device at a time.
  s.run.place = ModelPlace::host;
  CHECK(s.memory().held() == 0);
  CHECK(s.memory().waiting == Approx(alone.parameters + alone.optimizer + waiting));

  // In the same pass, it keeps activations as well.
  s.run.place = ModelPlace::device;
  s.run.others[0] = {.role = ModelRole::critic, .place = ModelPlace::joint};
  TrainingRun own = run_of(s.run.others[0], s.run);
  const RunMemory critic = run_memory(own, s.model, s.hw, s.stack);
  CHECK(s.memory().held() == Approx(critic.states() + critic.saved));

  const RunTime time = s.time();
  CHECK(time.critic == Approx(run_time(own, s.model, s.hw, s.stack).step()));
  CHECK(time.passes > 0);
}

TEST_CASE("a critic of its own size holds its own states", "[others]") {
  StepCase s;
  const ModelSpec small = load_model("qwen3-0.6b");
  s.run.others = {{.role = ModelRole::critic, .model = small}};
  TrainingRun value = s.run;
  value.others.clear();
  value.outputs = 1;
  const RunMemory own = run_memory(value, small, s.hw, s.stack);
  CHECK(s.memory().held() == Approx(own.parameters + own.optimizer));
  CHECK(s.time().critic == Approx(run_time(value, small, s.hw, s.stack).step()));
}

TEST_CASE("a forward pass of many sequences can be the fullest moment", "[others]") {
  StepCase s;
  s.run.passes = 1;
  s.run.forward_microbatch = 4;
  CHECK(s.memory().moment != StepMoment::forward_pass);
  s.run.forward_microbatch = 64;
  const RunMemory forward = s.memory();
  CHECK(forward.moment == StepMoment::forward_pass);
  // Logits in half and in single precision, and what comes into the head.
  const double rows = 64 * 2048;
  CHECK(forward.work == Approx(rows * (6.0 * 128256 + 2 * 4096)));
  CHECK(forward.gradients == 0);
  CHECK(forward.saved == 0);
}

TEST_CASE("a step of reinforcement learning is updates and forward passes", "[others]") {
  StepCase s;
  const RunTime once = run_time(s.run, s.model, s.hw, s.stack);
  s.run.passes = 1;
  const double pass = s.time().passes;
  s.run.updates = 8;
  s.run.epochs = 2;
  CHECK(s.run.step_sequences() == 256);
  const RunTime time = s.time();
  CHECK(time.compute == Approx(8 * once.compute));
  CHECK(time.update == Approx(8 * once.update));
  CHECK(time.passes == Approx(4 * pass));  // of the samples, not of their epochs
  CHECK(step_tokens(s.run) == Approx(256 * 2048));
  const double all = mfu_of(s.run, s.model, s.hw, 8.0);
  s.run.updates = s.run.epochs = 1;
  CHECK(all == Approx(mfu_of(s.run, s.model, s.hw, 1.0)));
}

TEST_CASE("knobs say which models a step has", "[others]") {
  RunKnobs knobs = knobs_of_learning();
  const TrainingRun plain = configured_learning(knobs).run;
  CHECK(plain.others.empty());
  CHECK(plain.passes == 1);
  CHECK(plain.updates == 1);
  knobs.set("batch-unit", "prompts");
  knobs.set("responses", 4);
  knobs.set("rollout-prompts", 128);
  knobs.set("epochs", 2);
  knobs.set("reference", "host");
  knobs.set("critic", "device");
  knobs.set("reward-model", "elsewhere");
  knobs.set("critic-microbatch", 8);
  const TrainingRun run = configured_learning(knobs).run;
  CHECK(run.global_batch == 128);
  CHECK(run.step_sequences() == 512);
  CHECK(run.updates == 8);
  CHECK(run.others ==
        std::vector<OtherModel>{{.role = ModelRole::reference, .place = ModelPlace::host},
                                {.role = ModelRole::critic, .microbatch = 8}});
  knobs.set("rollout-prompts", 16);
  CHECK_THROWS_WITH(configured_learning(knobs), Catch::Matchers::Contains("ppo_mini_batch_size") &&
                                                    Catch::Matchers::Contains("64 sequences"));
}

TEST_CASE("a model of another name has its own size, if it is known", "[others]") {
  RunKnobs knobs = knobs_of_learning();
  const Framework& framework = load_framework("verl");
  const auto places = [&](const std::string& knob) { return name_of_knob(framework, knob); };
  knobs.set("model", "meta-llama/Llama-3.1-8B");
  knobs.set("critic", "device");
  knobs.set("critic-name", "meta-llama/Llama-3.1-8B");
  CHECK_FALSE(configured_learning(knobs).run.others.at(0).model);
  CHECK(unknown_models(knobs, framework, places).empty());
  knobs.set("critic-name", "llama-2-7b");
  REQUIRE(configured_learning(knobs).run.others.at(0).model);
  CHECK(configured_learning(knobs).run.others.at(0).model->name == "llama-2-7b");
  knobs.set("critic-name", "/data/critic");
  CHECK_FALSE(configured_learning(knobs).run.others.at(0).model);
  const std::vector<std::string> notes = unknown_models(knobs, framework, places);
  REQUIRE(notes.size() == 1);
  CHECK_THAT(notes[0], Catch::Matchers::Contains("/data/critic is not known"));
  knobs.set("critic", "none");
  CHECK(unknown_models(knobs, framework, places).empty());
}

TEST_CASE("microbatches of all GPUs are divided, and budgets filled", "[others]") {
  RunKnobs knobs = knobs_of_learning();
  knobs.set("microbatch", 16);
  knobs.set("forward-microbatch", 64);
  knobs.set("critic", "device");
  knobs.set("critic-microbatch", 4);  // fewer than GPUs
  knobs.set("microbatch-unit", "all");
  const TrainingRun all = configured_learning(knobs).run;
  CHECK(all.microbatch == 2);
  CHECK(all.forward_microbatch == 8);
  CHECK(all.others.at(0).microbatch == 1);

  // 64 sequences of 2K for each GPU, 7.5K at a time.
  RunKnobs budget = knobs_of_learning();
  budget.clear("microbatch");
  budget.set("batch", 512);
  budget.set("token-budget", 7680);
  const TrainingRun limit = configured_learning(budget).run;
  CHECK(limit.microbatch == 3);
  CHECK(limit.global_batch == 512);
  CHECK(microbatches(limit) == Approx(64.0 / 3));
  // 18 microbatches, the fullest with 4.
  budget.set("budget-kind", "mean");
  CHECK(configured_learning(budget).run.microbatch == 4);
  budget.set("batch", 12);
  CHECK_THROWS_WITH(configured_learning(budget), Catch::Matchers::Contains("ppo_mini_batch_size"));
}

TEST_CASE("preference tuning has pairs, a reference, or neither", "[others]") {
  RunKnobs knobs = knobs_of_learning();
  knobs.set("task", "dpo");
  const TrainingRun dpo = configured_learning(knobs).run;
  CHECK(dpo.microbatch == 4);
  CHECK(dpo.passes == 0);
  REQUIRE(dpo.others.size() == 1);
  CHECK(dpo.others[0].role == ModelRole::reference);
  knobs.set("reference", "none");  // ORPO, SimPO, or log-probabilities in the data set
  CHECK(configured_learning(knobs).run.others.empty());
  CHECK(configured_learning(knobs).run.microbatch == 4);
  knobs.clear("reference");
  knobs.set("task", "kto");  // single sequences, and answers to other prompts
  const TrainingRun kto = configured_learning(knobs).run;
  CHECK(kto.microbatch == 2);
  CHECK(kto.passes == 1);
  CHECK(kto.others.at(0).passes == 2);
  knobs.set("task", "reward");
  CHECK(configured_learning(knobs).run.outputs == 1);
  CHECK(configured_learning(knobs).run.microbatch == 4);
  knobs.set("head", "vocabulary");
  CHECK(configured_learning(knobs).run.outputs == 0);
}
