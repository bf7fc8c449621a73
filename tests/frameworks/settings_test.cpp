#include "frameworks/files/settings.h"
#include "frameworks/files/python.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "frameworks/files/shell.h"

namespace longspan {

TEST_CASE("YAML and JSON with comments are the same settings") {
  const char* const yaml =
      "zero_optimization:\n  stage: 3\n  overlap_comm: True\n  offload_param: {device: cpu}\n"
      "lr: 1e-5\nmodules: [a, b]\nnothing: null\nnone: None\nbatch: auto\nbucket: 5e8\n";
  const char* const json =
      "// made by hand\n{\n\t\"zero_optimization\": {\"stage\": 3, /* all\n*/ \"overlap_comm\": "
      "true,\n"
      "\t\t\"offload_param\": {\"device\": \"cpu\"}},\n  \"lr\": 1e-5, \"modules\": [\"a\", "
      "\"b\"],\n"
      "  \"nothing\": null, \"none\": null, \"batch\": \"auto\", \"bucket\": 5e8, \"url\": "
      "\"http://x\",\n}\n";
  for (const char* text : {yaml, json}) {
    const Settings s = read_settings(text, "ds.json");
    CHECK(s.whole("zero_optimization.stage") == 3);
    CHECK(s.flag("zero_optimization.overlap_comm") == true);
    CHECK(s.text("zero_optimization.offload_param.device") == "cpu");
    CHECK(s.real("lr") == 1e-5);
    CHECK(s.list("modules") == std::vector<std::string>{"a", "b"});
    CHECK(s.has("nothing"));
    CHECK_FALSE(s.text("nothing"));
    CHECK_FALSE(s.text("none"));
    CHECK_FALSE(s.whole("batch"));
    CHECK_FALSE(s.whole("missing"));
    CHECK(s.whole("bucket") == 500'000'000);
  }
  CHECK(read_settings(json, "ds.json").text("url") == "http://x");
  const Settings s = read_settings("a: 1\nb: {c: 2, d: x}\n", "f.yaml");
  CHECK(s.unread() == std::vector<std::string>{"a", "b.c", "b.d"});
  CHECK(s.whole("b.c") == 2);
  CHECK(s.unread() == std::vector<std::string>{"a", "b.d"});
  CHECK(s.error("b.d", "wrong").what() == std::string("f.yaml:2: b.d: wrong"));
  CHECK_THROWS_WITH(s.whole("b.d"), "f.yaml:2: b.d: expected a number, got \"x\"");
}

TEST_CASE("anchors merge, and bombs, doubles and other documents are refused") {
  const Settings s = read_settings("base: &b {x: 1, y: 2}\nown:\n  y: 3\n  <<: *b\n", "f.yaml");
  CHECK(s.whole("own.x") == 1);
  CHECK(s.whole("own.y") == 3);
  std::string bomb = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n";
  for (char c = 'b'; c < 'j'; ++c) {
    bomb += std::string(1, c) + ": &" + c + " [";
    for (int i = 0; i < 10; ++i)
      bomb += (i > 0 ? ", *" : "*") + std::string(1, static_cast<char>(c - 1));
    bomb += "]\n";
  }
  CHECK_THROWS_WITH(read_settings(bomb, "f.yaml"), "f.yaml: more than 100000 settings");
  CHECK_THROWS_WITH(read_settings("{\"a\": 1, \"a\": 2}", "f.json"),
                    Catch::Contains("given twice"));
  CHECK_THROWS_WITH(read_settings("- 1\n", "f.yaml"), "f.yaml: expected a mapping of settings");
  CHECK_THROWS_WITH(read_settings("{\"a\": [1, 2", "f.json"), Catch::StartsWith("f.json:"));
}

TEST_CASE("TOML is settings too") {
  const Settings s = read_toml(
      "[model]\nname = \"qwen3\"  # small\n[training]\nseq_len = 16_384\nsteps = 10\nlr = 8e-4\n"
      "compile = true\nparts = [\"a\", \"b\"]\n[[runs]]\nn = 1\n[[runs]]\nn = 2\n",
      "train.toml");
  CHECK(s.text("model.name") == "qwen3");
  CHECK(s.whole("training.seq_len") == 16384);
  CHECK(s.real("training.lr") == 8e-4);
  CHECK(s.flag("training.compile") == true);
  CHECK(s.list("training.parts") == std::vector<std::string>{"a", "b"});
  CHECK(s.whole("runs.1.n") == 2);
  CHECK(s.error("training.steps", "wrong").what() ==
        std::string("train.toml:5: training.steps: wrong"));
  CHECK_THROWS_WITH(read_toml("a = 1\nb = = 2\n", "train.toml"),
                    Catch::StartsWith("train.toml:2: "));
}

TEST_CASE("a program follows the flags of a module that launches it") {
  const std::vector<ShellCommand> commands =
      read_shell(
          "python -u -m torch.distributed.launch --nnodes 2 --node_rank $R train.py --bf16 1\n",
          "run.sh")
          .commands;
  REQUIRE(commands.size() == 1);
  const Settings s = read_flags(commands[0], 1, "run.sh");
  CHECK(s.whole("nnodes") == 2);
  CHECK(s.has("node_rank"));
  CHECK_FALSE(s.has("node_rank.1"));
  CHECK(s.text("bf16") == "1");
}

TEST_CASE("flags of a command line are settings") {
  const std::vector<ShellCommand> commands =
      read_shell(
          "torchrun pretrain_gpt.py --seq-length 4096 --micro-batch-size=1 --bf16 --lr 1e-4 \\\n"
          "  --offload-modules core_attn attn_proj --seed -1 --nodes $N actor.use_kl=True "
          "+data.x=3 --fp16 stage=3 --nnodes 2:2 --range 1:2\n",
          "run.sh")
          .commands;
  REQUIRE(commands.size() == 1);
  const Settings s = read_flags(commands[0], 2, "run.sh");
  CHECK(s.whole("seq_length") == 4096);
  CHECK(s.whole("micro_batch_size") == 1);
  CHECK(s.flag("bf16") == true);
  CHECK(s.real("lr") == 1e-4);
  CHECK(s.list("offload_modules") == std::vector<std::string>{"core_attn", "attn_proj"});
  CHECK(s.whole("seed") == -1);
  CHECK(s.flag("actor.use_kl") == true);
  CHECK(s.whole("data.x") == 3);
  CHECK(s.flag("fp16") == true);  // not "stage=3"
  CHECK(s.whole("stage") == 3);
  CHECK(s.whole("nnodes") == 2);
  CHECK_THROWS_WITH(s.whole("range"), Catch::Matchers::Contains("expected a number, got \"1:2\""));
  CHECK_THROWS_WITH(s.whole("nodes"),
                    "run.sh:2: nodes: the value is not known without running the script: "
                    "$N in line 2 is not set in the script");
}

TEST_CASE("a flag's JSON object is settings below the flag") {
  const std::vector<ShellCommand> commands =
      read_shell(
          "train.py --kwargs '{\"a\": {\"b\": true}, \"c\": 2}' --other='{\"d\": \"x\"}' \\\n"
          "  --empty '{}' --word '{word}' --broken '{\"a\": '\n",
          "run.sh")
          .commands;
  REQUIRE(commands.size() == 1);
  const Settings s = read_flags(commands[0], 1, "run.sh");
  CHECK(s.flag("kwargs.a.b") == true);
  CHECK(s.whole("kwargs.c") == 2);
  CHECK(s.text("other.d") == "x");
  CHECK(s.text("empty") == "{}");
  CHECK(s.text("word") == "{word}");
  CHECK(s.text("broken") == "{\"a\": ");
  CHECK_FALSE(s.has("kwargs"));
}

TEST_CASE("a Python file's names stand for what they are") {
  const Settings settings = read_python(
      "from torch.optim import (AdamW,\n  SGD)\nimport mmengine\n"
      "length = 4096  # tokens\noptim = AdamW\ndata = dict(max_length=length, kind='a')\n"
      "other = unknown\n",
      "config.py");
  CHECK(settings.text("optim") == "AdamW");
  CHECK(settings.text("data.max_length") == "4096");
  CHECK_THROWS(settings.text("other"));
}

}  // namespace longspan
