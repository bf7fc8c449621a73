// Help, version, the catalogs, and the messages for wrong usage.
#include <algorithm>
#include <catch2/catch.hpp>

#include "base/file.h"
#include "tests/e2e/command.h"

namespace longspan::e2e {
namespace {

using Catch::Matchers::Contains;
using testing::TemporaryFolder;

const std::vector<std::string> kVerbs = {"max-seq", "plan",     "explain",  "simulate",
                                         "run",     "compare",  "profile",  "models",
                                         "hw",      "validate", "schedule", "assign"};

TEST_CASE("the program says its version and what it can do") {
  CHECK_THAT(longspan({"--version"}).out, Catch::Matchers::StartsWith("longspan 0."));
  const Result help = longspan({"--help"});
  CHECK(help.status == 0);
  for (const std::string& verb : kVerbs) CHECK_THAT(help.out, Contains(verb));
}

TEST_CASE("every verb has help that ends with an example") {
  for (const std::string& verb : kVerbs) {
    CAPTURE(verb);
    const Result help = longspan({verb, "--help"});
    CHECK(help.status == 0);
    CHECK(help.err.empty());
    CHECK_THAT(help.out, Contains("Example:\n  longspan " + verb));
  }
}

TEST_CASE("misuse is one line and status 2") {
  check_refused(longspan({}), 2, {"longspan --help"});
  check_refused(longspan({"pln"}), 2, {"unknown verb \"pln\"", "plan"});
  check_refused(longspan({"plan"}), 2, {"--model", "longspan plan --help"});
  check_refused(longspan({"plan", "--frob"}), 2, {"longspan plan --help"});
  check_refused(longspan({"models", "lst"}), 2, {"lst"});
  check_refused(longspan({"explain"}), 2, {"plan is required"});
  check_refused(longspan({"explain", "no-such-plan.yaml"}), 2, {"no-such-plan.yaml"});
}

TEST_CASE("with --json an error is a document as well as a line") {
  const Result result = longspan({"models", "show", "nothing-like-it", "--json"});
  check_refused(result, 2, {"nothing-like-it"});
  const auto document = nlohmann::json::parse(result.out);
  CHECK(document.at("exit_status") == 2);
  CHECK("longspan: " + document.at("error").get<std::string>() + "\n" == result.err);
  CHECK(nlohmann::json::parse(longspan({"plan", "--json"}).out).at("exit_status") == 2);
}

TEST_CASE("models: the list and one of it") {
  const auto list = longspan_json({"models", "list"}).at("models");
  const auto tiny = std::find_if(list.begin(), list.end(),
                                 [](const auto& model) { return model["name"] == "tiny-llama"; });
  REQUIRE(tiny != list.end());
  // Embedding and head 2 * 256 * 64, final norm 64; two layers of attention (64 * (64 + 64) + 2 *
  // 32 * 64), MLP 3 * 64 * 176 and two norms of 64.
  CHECK(tiny->at("parameters") ==
        2 * 256 * 64 + 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 176 + 2 * 64));
  CHECK_THAT(longspan({"models", "list"}).out, Contains("llama-3.1-8b"));
  CHECK(longspan({"models"}).out == longspan({"models", "list"}).out);
  CHECK(longspan({"models", "gpt2"}).out == longspan({"models", "show", "gpt2"}).out);

  const auto shown = longspan_json({"models", "show", "tiny-llama"});
  CHECK(shown.at("parameters") == tiny->at("parameters"));
  CHECK(shown.at("units").size() == 3);
  CHECK(shown.at("lengths")[1].at("step_flops_per_token") >
        shown.at("lengths")[0].at("step_flops_per_token"));
  CHECK_THAT(longspan({"models", "show", kGolden + "/tiny_gpt2"}).out, Contains("wte.weight"));
}

TEST_CASE("hw: the list and one of it") {
  const auto list = longspan_json({"hw", "list"}).at("hardware");
  CHECK(std::any_of(list.begin(), list.end(),
                    [](const auto& hw) { return hw["name"] == "h100-80g"; }));
  CHECK_THAT(longspan({"hw", "list"}).out, Contains("h100-80g"));

  const auto nodes = longspan_json({"hw", "list"}).at("nodes");
  const auto dgx = std::find_if(nodes.begin(), nodes.end(),
                                [](const auto& node) { return node["name"] == "dgx-h100"; });
  REQUIRE(dgx != nodes.end());
  CHECK(dgx->at("devices") == 8);
  CHECK(longspan_json({"hw", "show", "4xdgx-h100"}).at("nodes") == 4);
  check_refused(longspan({"hw", "show", "9xh100-80g"}), 2, {"at most 8 devices", "dgx-h100"});

  CHECK(longspan_json({"hw", "show", "h100-80g", "--attention", "flash3"}).at("attention_kernel") ==
        "flash3");
  check_refused(longspan({"hw", "show", "h100-80g", "--attention", "flash5"}), 2,
                {"flash5", "cudnn, flash1, flash2, flash3"});

  const auto shown = longspan_json({"hw", "show", "2x8xh100-80g"});
  CHECK(shown.at("nodes") == 2);
  CHECK(shown.at("devices_per_node") == 8);
  const auto tiny = longspan_json({"hw", "show", kHardware});
  CHECK(tiny.at("figures").at("device").at("memory_bytes").at("value") == 64.0 * 1024 * 1024);
  CHECK(tiny.at("figures").at("host").at("memory_bytes").at("source") == "assumption: for tests");
  CHECK_THAT(longspan({"hw", "show", kHardware}).out, Contains("64.0 MiB"));
}

TEST_CASE("hw import: a file of Calculon's becomes one that --hw takes") {
  const TemporaryFolder folder;
  const std::string from = folder.path() / "theirs.json", to = folder.path() / "ours.yaml";
  write_file_atomically(from, kCalculon);
  CHECK(longspan_json({"hw", "import", from, "-o", to}).at("devices") == 8);
  const auto shown = longspan_json({"hw", "show", to});
  CHECK(shown.at("name") == "theirs");
  CHECK(shown.at("figures").at("device").at("peak_flops_bfloat16").at("value") == 312e12);
  check_refused(longspan({"hw", "import", to, "-o", from}), 2, {"matrix: missing"});
  check_refused(longspan({"hw", "import", from}), 2, {"--output"});
}

TEST_CASE("headings are bold on a terminal that shows it, and nowhere else") {
  const std::string bold = "\033[1m";
  // Runs the program on a pseudo-terminal, from which the test reads its output.
  const auto on_terminal = [](const std::string& environment) {
    Command command({"models", "list"}, 0,
                    {"sh", "-c", "script -qec \"env " + environment + " $0 $*\" /dev/null"});
    return command.wait();
  };
  const Result shown = on_terminal("-u NO_COLOR TERM=xterm");
  REQUIRE(shown.status == 0);
  CHECK_THAT(shown.out, Catch::Matchers::Contains(bold));
  for (const char* environment : {"TERM=xterm NO_COLOR=1", "-u NO_COLOR TERM=dumb",
                                  "-u NO_COLOR TERM=xterm OMPI_COMM_WORLD_SIZE=1"}) {
    CAPTURE(environment);
    const Result plain = on_terminal(environment);
    CHECK(plain.status == 0);
    CHECK_THAT(plain.out, Catch::Matchers::Contains("llama-3.1-8b"));
    CHECK_THAT(plain.out, !Catch::Matchers::Contains("\033"));
  }
  CHECK_THAT(longspan({"models", "list"}).out, !Catch::Matchers::Contains("\033"));
}

TEST_CASE("profile measures this machine, and the result is a profile") {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "machine.yaml";
  const auto document = longspan_json({"profile", "--backend", "cpu", "-o", path, "--seconds", "2",
                                       "--device-memory", "64MiB", "--host-memory", "256MiB",
                                       "--nvme-dir", folder.path(), "--threads", "1"});
  CHECK(document.at("file") == path);
  CHECK(document.at("figures").at("device").at("memory_bytes").at("value") == 64.0 * 1024 * 1024);
  CHECK(longspan_json({"hw", "show", path}).at("name") == document.at("name"));
  CHECK(names_in(folder.path()) == std::vector<std::string>{"machine.yaml"});
  check_refused(longspan({"profile", "--seconds", "-1", "-o", path}), 2, {"--seconds"});
  check_refused(longspan({"profile", "--backend", "gpu", "-o", path}), 2, {"--backend", "cuda"});
  check_refused(longspan({"profile", "--seconds", "nan", "-o", path}), 2, {"--seconds"});
  check_refused(longspan({"profile", "-o", folder.path() / "no" / "such.yaml"}), 2,
                {"there is no folder"});
}

TEST_CASE("profile says itself what it cannot have") {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "machine.yaml";
  const std::vector<std::string> words = {
      "profile", "--backend", "cpu", "-o", path, "--seconds", "1", "--nvme-dir", folder.path()};
  const auto with = [&](std::vector<std::string> more, int64_t file_limit_bytes = 0) {
    more.insert(more.begin(), words.begin(), words.end());
    return longspan(more, file_limit_bytes);
  };
  check_refused(with({"--device-memory", "99TiB"}), 1, {"99.0 TiB asked for", "in all"});
  check_refused(with({"--host-memory", "99TiB"}), 1, {"99.0 TiB asked for"});
  // A limit on file sizes acts as a full disk does.
  const Result full = with({}, 1 << 20);
  check_refused(full, 3, {"profile: measuring the file tier takes 64.0 MiB", "--nvme-dir"});
  CHECK(names_in(folder.path()).empty());
}

TEST_CASE("a profile of a busy machine is warned of wherever it counts") {
  const TemporaryFolder folder;
  const auto machine = [&](const std::string& share) {
    return folder.file("machine-" + share + ".yaml",
                       read_text(kHardware) + "\ndisturbed_share: {value: " + share +
                           ", unit: 1, source: \"measured: by a test\", date: 2026-11-23}\n");
  };
  const auto plan_with = [&](const std::string& hardware, const std::string& plan) {
    return longspan(
        {"plan", "--model", "tiny-llama", "--hw", hardware, "--seq", "256", "-o", plan});
  };
  const std::string plan = folder.path() / "plan.yaml", record = folder.path() / "run.json";
  const std::string warning = "longspan: warning: hardware";
  const auto check_warned = [&](const Result& result) {
    INFO(result.out << result.err);
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    CHECK_THAT(result.err, Catch::Matchers::StartsWith(warning) &&
                               Catch::Matchers::Contains("63.0 % of the timings"));
  };
  CHECK(plan_with(machine("0.1"), plan).err.empty());
  check_warned(plan_with(machine("0.63"), plan));
  check_warned(longspan({"run", plan, "--steps", "1", "-o", record}));
  check_warned(longspan({"compare", plan, record}));
}

TEST_CASE("profile of a GPU where there is none says why, in one line") {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "gpu.yaml";
  const Result result = longspan({"profile", "--backend", "cuda", "--seconds", "1", "-o", path});
  if (result.status == 0) {  // there is one
    CHECK(longspan_json({"hw", "show", path}).at("backend") == "cuda");
    return;
  }
  check_refused(result, 2, {"--backend cuda", "no GPU is usable: "});
  CHECK(names_in(folder.path()).empty());
}

}  // namespace
}  // namespace longspan::e2e
