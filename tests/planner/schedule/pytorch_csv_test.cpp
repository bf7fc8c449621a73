// PyTorch's files: read and written again byte for byte, in both dialects, and our own in the same
// form.
#include <catch2/catch.hpp>

#include "planner/schedule/check.h"
#include "planner/schedule/gathering.h"
#include "planner/schedule/io/pytorch_csv.h"
#include "tests/planner/schedule/pytorch_files.h"
#include "tests/planner/schedule/schedules.h"

namespace longspan {
namespace {

std::string with_carriage_returns(std::string_view text) {
  std::string crlf;
  for (const char c : text) {
    if (c == '\n') crlf += '\r';
    crlf += c;
  }
  return crlf;
}

// As PyTorch's lowering writes it (2.15): GPipe, two ranks, one microbatch.
constexpr std::string_view kWaits =
    "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0RESHARD\r\n"
    "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1WAIT_REDUCE_GRAD,1RESHARD,1WAIT_SEND_B0\r\n";

}  // namespace

TEST_CASE("PyTorch's own files come back byte for byte") {
  for (const std::string_view file : {testing::kDualPipeV, testing::kCompute, testing::kOldCompute,
                                      testing::kExchanges, testing::kOldExchanges}) {
    const PipelineCsv csv = read_pipeline_csv(file, "file");
    CHECK(write_pipeline_csv(csv) == file);
    CHECK(first_fault(csv.schedule, {}).value_or("none") == "none");
    const std::string crlf = with_carriage_returns(file);
    CHECK(write_pipeline_csv(read_pipeline_csv(crlf, "file")) == crlf);
    const std::string_view cut = file.substr(0, file.size() - 1);
    CHECK(write_pipeline_csv(read_pipeline_csv(cut, "file")) == cut);
  }
}

TEST_CASE("both dialects say the same") {
  const PipelineCsv old = read_pipeline_csv(testing::kOldCompute, "old");
  const PipelineCsv now = read_pipeline_csv(testing::kCompute, "new");
  CHECK(old.old_dialect);
  CHECK(!now.old_dialect);
  CHECK(old.schedule.ranks == now.schedule.ranks);
  CHECK(now.schedule.stages == 4);
  CHECK(now.schedule.microbatches == 8);
  CHECK(read_pipeline_csv(testing::kOldExchanges, "old").schedule.ranks ==
        read_pipeline_csv(testing::kExchanges, "new").schedule.ranks);
}

TEST_CASE("dialects are told apart, and not mixed") {
  CHECK(!read_pipeline_csv("0F0,0B0\n", "f").old_dialect);
  CHECK(read_pipeline_csv("0F0,0BW0\n", "f").schedule.ranks[0][1].kind == ActionKind::backward);
  CHECK(read_pipeline_csv("0F0,0B0,0W0\n", "f").schedule.ranks[0][1].kind ==
        ActionKind::backward_input);
  CHECK(!read_pipeline_csv("0F0,0I0,0W0,0F1,0B1\n", "f").old_dialect);
  CHECK_THROWS_WITH(read_pipeline_csv("0F0,0I0,0W0,0BW1\n", "f"), Catch::Contains("one of them"));
}

TEST_CASE("what is no action is refused with its place") {
  CHECK_THROWS_WITH(read_pipeline_csv("0F0,0B0\n1F0,,1Q0\n", "f.csv"),
                    Catch::StartsWith("f.csv: line 2, cell 3: \"1Q0\" is no action"));
  for (const char* text :
       {"F0\n", "0F\n", "0UNSHARD1\n", "(0F0;1B0)\n", "(0F0;1B0OVERLAP_F_B\n", "-1F0\n", "0F0 \n",
        "99999999F0\n", "0.F0\n", "0F0.1\n", "0.1UNSHARD\n", "()OVERLAP_F_B\n"}) {
    CHECK_THROWS_WITH(read_pipeline_csv(text, "f"), Catch::Contains("cell 1"));
  }
  CHECK_THROWS_WITH(read_pipeline_csv("", "f"), Catch::Contains("no rank's actions"));
}

TEST_CASE("schedules of all families are written and read again") {
  for (const ScheduleFamily& family : schedule_families()) {
    INFO(family.name);
    testing::Asked asked{.ranks = 4, .microbatches = 16};
    asked.virtual_stages = family.least_virtual_stages;
    if (family.sliced) asked.slices = 4;
    const Schedule s = testing::schedule_of(family.name, asked);
    if (s.pipes > 1) {
      CHECK_THROWS_WITH(pipeline_csv_of(s), Catch::Contains("one copy"));
      continue;
    }
    if (s.moving_stages) {
      CHECK_THROWS_WITH(pipeline_csv_of(s), Catch::Contains("each stage on one rank"));
      continue;
    }
    const PipelineCsv csv = pipeline_csv_of(s);
    const PipelineCsv back = read_pipeline_csv(write_pipeline_csv(csv), "ours");
    CHECK(back.schedule.ranks == s.ranks);
    CHECK(back.idle == csv.idle);
    CHECK(back.schedule.stages == s.stages);
    const Schedule exchanged = with_exchanges(s);
    CHECK(first_fault(exchanged, {}).value_or("none") == "none");
    CHECK(write_pipeline_csv(pipeline_csv_of(exchanged)).find(",,") == std::string::npos);
    // Explicit exchanges make nothing later.
    ScheduleCosts costs;
    costs.communication = 0.3;
    CHECK(simulate(exchanged, costs).cost == Approx(simulate(s, costs).cost));
  }
}

TEST_CASE("columns keep ranks aligned") {
  const PipelineCsv csv =
      pipeline_csv_of(testing::schedule_of("1f1b", {.ranks = 2, .microbatches = 2}));
  CHECK(write_pipeline_csv(csv) == "0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1\n");
}

TEST_CASE("an exchange is written in front of what needs it") {
  const Schedule s = with_exchanges(testing::schedule_of("1f1b", {.ranks = 2, .microbatches = 2}));
  CHECK(write_pipeline_csv(pipeline_csv_of(s)) ==
        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0WAIT_SEND_F0,0RECV_B1,0B1,0WAIT_SEND_F1\n"
        "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1WAIT_SEND_B0,1WAIT_SEND_B1\n");
}

TEST_CASE("waits are read and written, made as PyTorch makes them, and left out for older ones") {
  const PipelineCsv csv = read_pipeline_csv(kWaits, "file");
  CHECK(write_pipeline_csv(csv) == kWaits);
  CHECK(first_fault(csv.schedule, {}).value_or("none") == "none");
  const Schedule plain = testing::schedule_of("gpipe", {.ranks = 2, .microbatches = 1});
  const Schedule made = with_exchanges(with_gathering(plain));
  CHECK(made.ranks == csv.schedule.ranks);
  CHECK(write_pipeline_csv(pipeline_csv_of(without_waits(made))).find("WAIT") == std::string::npos);
  CHECK(without_waits(with_exchanges(plain)).ranks[0].size() == 4);
}

TEST_CASE("slices are written so that PyTorch refuses them") {
  const Schedule s = testing::schedule_of("seq1f1b", {.ranks = 1, .microbatches = 1, .slices = 2});
  const std::string text = write_pipeline_csv(pipeline_csv_of(s));
  CHECK(text == "0.0F0,0.1F0,0.1B0,0.0B0\n");
  CHECK(read_pipeline_csv(text, "ours").schedule.ranks == s.ranks);
}

}  // namespace longspan
