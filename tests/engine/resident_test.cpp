// The process's memory beyond its arenas is small and bounded. A separate binary, because it reads
// the memory of its own process.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>

#include "engine/train/trainer.h"
#include "tests/engine/training_fixture.h"

namespace longspan::testing {
namespace {

int64_t status_bytes(const std::string& wanted) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(wanted + ":", 0) == 0) return std::stoll(line.substr(wanted.size() + 1)) * 1024;
  }
  return -1;
}

}  // namespace

TEST_CASE("resident memory exceeds the arenas by at most 48 MiB") {
  // Stated in the README: code, libraries, the program's own lists, thread stacks, the token file,
  // and one parameter unit while weights are initialised or saved.
  constexpr int64_t kBound = int64_t{48} << 20;
  constexpr int64_t kSequence = 8192;
  ModelSpec model = byte_llama();
  model.hidden = 256;
  model.ffn = 688;
  for (const Strategy& strategy : {whole_sequence(kSequence), chunked_and_offloaded(512)}) {
    Trainer trainer(plan_for(model, strategy, kSequence), {}, example_text(kSequence),
                    {.nvme_directory = std::filesystem::temp_directory_path()});
    trainer.step();
    const auto arenas = trainer.executor().arena_bytes();
    const int64_t beyond = status_bytes("VmRSS") - arenas[0] - arenas[1];
    INFO("arenas " << arenas[0] + arenas[1] << " B, resident beyond them " << beyond << " B");
    CHECK(arenas[0] + arenas[1] > (int64_t{20} << 20));
    CHECK(beyond <= kBound);
  }
}

}  // namespace longspan::testing
