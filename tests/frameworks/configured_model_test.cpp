// The model of a config against the model that its user gives with it.
#include "frameworks/knobs/configured_model.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "frameworks/read/read_config.h"
#include "models/catalog.h"

using namespace longspan;

namespace {

RunKnobs knobs_of(const std::string& script) {
  const ConfigReading reading = read_config(
      {{"train.sh", script}}, "", [](const std::string&) { return std::optional<std::string>(); });
  return reading.knobs;
}

ModelSpec reconciled(const RunKnobs& knobs, const ModelSpec& given,
                     std::vector<std::string>& notes) {
  return reconcile(
      knobs, given, [](const std::string& knob) { return knob; }, notes);
}

const std::string kSizes =
    "torchrun pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
    "--seq-length 4096 --micro-batch-size 1 --global-batch-size 8 ";

}  // namespace

TEST_CASE("a model built from flags has the framework's defaults", "[frameworks]") {
  const ModelSpec given = load_model("llama-3.1-8b");
  std::vector<std::string> notes;
  const ModelSpec model = reconciled(knobs_of(kSizes + "--ffn-hidden-size 14336"), given, notes);
  CHECK(model.activation == Activation::gelu);
  CHECK(model.kv_heads == 32);
  CHECK(model.ffn == given.ffn);
  CHECK(model.vocab == given.vocab);  // the flags do not say it
  REQUIRE(notes.size() == 2);
  CHECK(notes[0] == "the config trains an MLP without a gate, while llama-3.1-8b has one");
  CHECK(notes[1] == "the config trains 32 KV heads, while llama-3.1-8b has 8 KV heads");
}

TEST_CASE("flags that describe the given model agree with it", "[frameworks]") {
  const ModelSpec given = load_model("llama-3.1-8b");
  std::vector<std::string> notes;
  const ModelSpec model =
      reconciled(knobs_of(kSizes + "--ffn-hidden-size 14336 --swiglu --group-query-attention "
                                   "--num-query-groups 8 --untie-embeddings-and-output-weights"),
                 given, notes);
  CHECK(notes.empty());
  CHECK(model == given);
}

TEST_CASE("a framework that loads a model takes the given one", "[frameworks]") {
  const ModelSpec given = load_model("qwen3-8b");
  std::vector<std::string> notes;
  RunKnobs knobs;
  knobs.set("sequence", 4096);
  CHECK(reconciled(knobs, given, notes) == given);
  CHECK(notes.empty());
}

TEST_CASE("sizes that contradict the given model are refused by key", "[frameworks]") {
  std::vector<std::string> notes;
  const RunKnobs knobs = knobs_of(kSizes);
  CHECK_THROWS_WITH(reconciled(knobs, load_model("llama-3.1-70b"), notes),
                    "layers: llama-3.1-70b has 80 layers; give the model that the config trains, "
                    "or leave one out");
}
