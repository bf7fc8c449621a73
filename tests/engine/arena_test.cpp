#include "engine/runtime/arena.h"

#include <catch2/catch.hpp>
#include <cstdlib>

#include "base/error.h"

namespace longspan {

TEST_CASE("more memory than the machine has available is refused, unless it grows on demand") {
  constexpr int64_t kPetabyte = int64_t{1} << 50;
  CHECK_NOTHROW(refuse_unless_available(1, "host"));
  CHECK_THROWS_WITH(
      refuse_unless_available(kPetabyte, "host"),
      Catch::StartsWith("host memory: the plan's peak is 1.00 PiB, this machine has") &&
          Catch::Contains("short by"));
  REQUIRE(setenv("LONGSPAN_MEMORY_GROWS", "1", 1) == 0);
  CHECK_NOTHROW(refuse_unless_available(kPetabyte, "host"));
  REQUIRE(unsetenv("LONGSPAN_MEMORY_GROWS") == 0);
}

}  // namespace longspan
