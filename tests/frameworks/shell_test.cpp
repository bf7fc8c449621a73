#include "frameworks/files/shell.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "base/error.h"

namespace longspan {
namespace {

// The words of the last command, joined by a bar; unknown ones as "?".
std::string last(const std::string& script) {
  const std::vector<ShellCommand> commands = read_shell(script, "run.sh");
  REQUIRE_FALSE(commands.empty());
  std::string text;
  for (const ShellWord& word : commands.back().words) {
    text += (text.empty() ? "" : "|") + (word.unresolved.empty() ? word.text : "?");
  }
  return text;
}

}  // namespace

TEST_CASE("words, quotes, comments and continued lines are the shell's") {
  CHECK(last("torchrun train.py --a 1  # why\n") == "torchrun|train.py|--a|1");
  CHECK(last("a 'b c' \"d  e\" f\\ g \"\"") == "a|b c|d  e|f g|");
  CHECK(last("a \\\n  --b \\\n  2\n") == "a|--b|2");
  CHECK(last("a \\\r\n  --b\r\n") == "a|--b");
  CHECK(last("cd /x && a b; c d | tee log.txt\n") == "tee|log.txt");
  CHECK(last("a b > log 2>&1") == "a|b");
  CHECK(last("a b &> log &") == "a|b");
  CHECK(last("cat <<EOF > f\n--not 1\nEOF\na b") == "a|b");
  CHECK(last("a x#y") == "a|x#y");
}

TEST_CASE("a variable can be read from a text that follows") {
  const std::string script =
      "N=4\nread -r -d '' ALL <<EOF\ntrain.py \\\n  --n $N \\\n  --b 'c d'\nEOF\n";
  CHECK(last(script + "torchrun $ALL") == "torchrun|train.py|--n|4|--b|'c|d'");
  CHECK(last("read -r -d '' ALL <<'EOF'\n--n $N\nEOF\na $ALL") == "a|--n|$N");
  CHECK(last("read A <<-EOF\n\t--n 1\n\tEOF\na $A") == "a|--n|1");
  CHECK(last("read A <<EOF\n--n $M\nEOF\na $A") == "a|--n|?");
  CHECK(last("read A <<EOF\n--n 1") == "read|A");
}

TEST_CASE("variables, defaults, arrays and arithmetic are expanded") {
  CHECK(last("TP=8\na --tp $TP --pp ${PP:-2} --cp ${CP-4}") == "a|--tp|8|--pp|2|--cp|4");
  CHECK(last("export SEQ=$((128 * 1024))\na ${SEQ}") == "a|131072");
  CHECK(last("A=2 B=3\na $(( (A + $B) * 2 - ${A} / 2 % 5 ))") == "a|9");
  CHECK(last("ARGS=\"--x 1 --y 2\"\na $ARGS") == "a|--x|1|--y|2");
  CHECK(last("ARGS=\"--x 1\"\na \"$ARGS\"") == "a|--x 1");
  CHECK(last("ARGS=\"--x 1\"\nARGS+=\" --y 2\"\na $ARGS") == "a|--x|1|--y|2");
  CHECK(last("ARGS=\"--x 1\n  --y 2\"\na ${ARGS}") == "a|--x|1|--y|2");
  CHECK(last("M=(\n  --x 1  # one\n  --name \"a b\"\n)\nM+=(--z)\na \"${M[@]}\" ${M[@]}") ==
        "a|--x|1|--name|a b|--z|--x|1|--name|a|b|--z");
  CHECK(last("D=${1:-/data}/x\na $D") == "a|/data/x");
  const std::vector<ShellCommand> commands =
      read_shell("export A=1\nB=2\nC=3 run --b $B", "run.sh");
  REQUIRE(commands.size() == 1);
  CHECK(commands[0].environment.size() == 2);
  CHECK(commands[0].environment.at("A").text == "1");
  CHECK(commands[0].environment.at("C").text == "3");
  CHECK(commands[0].words[2].line == 3);
}

TEST_CASE("what only a shell knows is not guessed, and says its line") {
  const auto why = [](const std::string& script) {
    const std::vector<ShellCommand> commands = read_shell(script, "run.sh");
    REQUIRE_FALSE(commands.empty());
    return commands.back().words.back().unresolved;
  };
  CHECK(why("\na $(nproc)") == "$(nproc) in line 2 is the output of a program");
  CHECK(why("a `hostname`") == "$(hostname) in line 1 is the output of a program");
  CHECK(why("a --n $NODES") == "$NODES in line 1 is not set in the script");
  CHECK(why("N=$(wc -l < f)\na $((N * 8))") == "$(wc -l < f) in line 1 is the output of a program");
  CHECK(why("T=1\nif [ $X = big ]; then\n  T=8\nfi\na $T") ==
        "$T is set under a condition in line 3");
  CHECK(why("T=1\nif [ $X = big ]; then\n  T=1\nfi\na $T").empty());
  CHECK(why("a ${X##*/}") == "${X##*/} in line 1 needs a shell");
  CHECK(why("a $((1 / 0))") == "$((1 / 0)) in line 1 needs a shell");
}

TEST_CASE("text that is no script is refused with its line") {
  const auto refused = [](const std::string& script, const std::string& says) {
    CHECK_THROWS_WITH(read_shell(script, "run.sh"), Catch::Contains(says));
  };
  refused("a\nb \"c", "run.sh:2: this \" has no end");
  refused("a 'b", "run.sh:1: this ' has no end");
  refused("A=(\n1 2", "run.sh:1: this array has no end");
  refused("a $((1 + 2", "run.sh:1: this $(( has no end");
  refused("a ${B", "run.sh:1: this ${ has no end");
  CHECK(read_shell("", "run.sh").empty());
  CHECK(read_shell("A=(1)\nA+=(\"${A[@]}\" \"${A[@]}\")\n", "run.sh").empty());
  std::string doubles = "A=(1 2 3 4 5 6 7 8)\n";
  for (int i = 0; i < 30; ++i) doubles += "A+=(\"${A[@]}\")\n";
  refused(doubles, "too many words");
}

}  // namespace longspan
