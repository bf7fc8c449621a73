#include "frameworks/files/shell.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "base/error.h"

namespace longspan {
namespace {

// The words of the last command, joined by a bar; unknown ones as "?".
std::string last(const std::string& script) {
  const std::vector<ShellCommand> commands = read_shell(script, "run.sh").commands;
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
      read_shell("export A=1\nB=2\nC=3 run --b $B", "run.sh").commands;
  REQUIRE(commands.size() == 1);
  CHECK(commands[0].environment.size() == 2);
  CHECK(commands[0].environment.at("A").text == "1");
  CHECK(commands[0].environment.at("C").text == "3");
  CHECK(commands[0].words[2].line == 3);
}

TEST_CASE("what only a shell knows is not guessed, and says its line") {
  const auto why = [](const std::string& script) {
    const std::vector<ShellCommand> commands = read_shell(script, "run.sh").commands;
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

TEST_CASE("a text for another shell is read with the variables of the script") {
  CHECK(last("CMD=\"a.py --x 1\"\nsrun -l bash -c '$RUN $CMD'") == "?|a.py|--x|1");
  CHECK(last("A=(\n  --x 1\n)\nCMD=\"run $N a.py ${A[@]}\"\nsrun bash -c \"numactl $CMD\"") ==
        "numactl|run|?|a.py|--x|1");
  CHECK(last("OPTS=\"--x 1\"\nCMD=\"a.py $OPTS\"\neval $CMD") == "a.py|--x|1");
  CHECK(last("E='eval \"$E\"'\neval \"$E\"") == "eval|eval \"$E\"");  // ends
  // A quote that only an unknown part closes is no error.
  CHECK(last("bash -c \"echo '$X\"") == "bash|-c|?");
  CHECK_THROWS_WITH(read_shell("bash -c \"echo 'x\"", "run.sh"),
                    Catch::Contains("run.sh:1: this ' has no end"));
}

TEST_CASE("a branch is read if its condition is known to hold") {
  const std::string branches =
      "if [ $SIZE = 7B ]; then\n  L=32\n  cd x\nelif [ $SIZE = 13B ]; then L=40\n"
      "else\n  L=80\n  cd y\nfi\n";
  CHECK(last("SIZE=7B\n" + branches + "a $L") == "a|32");
  CHECK(last("SIZE=13B\n" + branches + "a $L") == "a|40");
  CHECK(last("SIZE=70B\n" + branches + "a $L") == "a|80");
  CHECK(last(branches + "a $L") == "a|?");
  const std::vector<ShellCommand> commands =
      read_shell("SIZE=13B\n" + branches + "a", "run.sh").commands;
  CHECK(commands.size() == 1);
  const auto holds = [](const std::string& condition) {
    return last("N=4\nE=\"\"\nif " + condition + "; then R=1; else R=0; fi\na $R") == "a|1";
  };
  CHECK(holds("[ \"$N\" = \"4\" ]"));
  CHECK(holds("[[ $N == 4 ]]"));
  CHECK_FALSE(holds("[[ $N != 4 ]]"));
  CHECK(holds("[ $N -gt 3 ]"));
  CHECK_FALSE(holds("test $N -lt 3"));
  CHECK(holds("[ -n \"$N\" ]"));
  CHECK(holds("[ -z \"$E\" ]"));
  // More than one command, patterns and files are for a shell.
  const auto known = [](const std::string& condition) {
    return last("N=4\nR=0\nif " + condition + "; then R=1; fi\na $R") != "a|?";
  };
  CHECK_FALSE(known("[ $N = 4 ] && [ $N = 5 ]"));
  CHECK_FALSE(known("[[ $N == 4* ]]"));
  CHECK_FALSE(known("[ -f /etc/hosts ]"));
  CHECK_FALSE(known("grep x y"));
}

TEST_CASE("files that a script writes are kept, with its variables") {
  const ShellScript script = read_shell(
      "STAGE=1\nname=\"./ds.$JOB.json\"\ncat <<EOT > $name\n{\"stage\": $STAGE, \"n\": "
      "$(nproc)}\nEOT\n"
      "cat > raw.json <<'EOF'\n{\"stage\": $STAGE}\nEOF\na --config ${name}\n",
      "run.sh");
  REQUIRE(script.files.size() == 2);
  CHECK(script.files.at("./ds..json") == "{\"stage\": 1, \"n\": null}\n");
  CHECK(script.files.at("raw.json") == "{\"stage\": $STAGE}\n");
  CHECK(script.commands.back().words[2].text == "./ds..json");
  CHECK(read_shell("if [ a = b ]; then\ncat <<E > f\nx\nE\nfi\n", "run.sh").files.empty());
}

TEST_CASE("options of sbatch set the variables of Slurm") {
  const std::string script =
      "#!/bin/bash\n#SBATCH --nodes=16\n#SBATCH --gpus-per-node=h100:4\n#SBATCH -n 64  # tasks\n"
      "#SBATCH --cpus-per-task 8\n#SBATCH --job-name=$X\n#SBATCH\n";
  CHECK(last(script + "a $SLURM_NNODES $SLURM_JOB_NUM_NODES ${SLURM_GPUS_PER_NODE}") ==
        "a|16|16|4");
  CHECK(last(script + "a $SLURM_NTASKS $SLURM_CPUS_PER_TASK $SLURM_JOBID") == "a|64|8|?");
  CHECK(last("#SBATCH --gres=gpu:a100:8\na $SLURM_GPUS_ON_NODE") == "a|8");
  CHECK(last("#SBATCH --gres=craynetwork:0\na $SLURM_GPUS_ON_NODE") == "a|?");
}

TEST_CASE("a default that is assigned stays") {
  CHECK(last(": \"${TP:=2}\"\na --tp $TP") == "a|--tp|2");
  CHECK(last("TP=4\n: ${TP:=2}\na --tp $TP") == "a|--tp|4");
  CHECK(last("echo ${TP:-2}\na --tp $TP") == "a|--tp|?");
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
  CHECK(read_shell("", "run.sh").commands.empty());
  CHECK(read_shell("A=(1)\nA+=(\"${A[@]}\" \"${A[@]}\")\n", "run.sh").commands.empty());
  std::string doubles = "A=(1 2 3 4 5 6 7 8)\n";
  for (int i = 0; i < 30; ++i) doubles += "A+=(\"${A[@]}\")\n";
  refused(doubles, "too many words");
}

}  // namespace longspan
