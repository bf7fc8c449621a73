// The changes that check proposes for a config that does not fit.
#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>
#include <string>

#include "frameworks/check/check_config.h"
#include "frameworks/read/read_config.h"
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
