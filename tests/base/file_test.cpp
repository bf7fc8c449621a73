#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <stdexcept>

#include "base/error.h"
#include "tests/base/temporary_folder.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using testing::TemporaryFolder;

std::vector<std::string> names_in(const TemporaryFolder& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST_CASE("what is written is read back, byte for byte") {
  const TemporaryFolder folder;
  std::string bytes(300000, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7);
  write_file_atomically(folder.path() / "a", bytes);
  CHECK(read_file(folder.path() / "a") == bytes);
  write_file_atomically(folder.path() / "a", "short");
  CHECK(read_file(folder.path() / "a") == "short");
  write_file_atomically(folder.path() / "a", "");
  CHECK(read_file(folder.path() / "a").empty());
  CHECK(names_in(folder) == std::vector<std::string>{"a"});
}

TEST_CASE("an unreadable file is named with the reason") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(read_file(folder.path() / "none"),
                    Contains("none") && Contains("No such file or directory"));
  CHECK_THROWS_WITH(read_file(folder.path()), Contains("Is a directory"));
  try {
    read_file(folder.path() / "none");
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::bad_input);
  }
}

TEST_CASE("only regular files of a bounded size are read") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(read_file("/dev/zero"), Contains("/dev/zero: expected a regular file"));
  const fs::path pipe = folder.path() / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_THROWS_WITH(read_file(pipe), Contains("pipe: expected a regular file"));
  const fs::path ten = folder.file("ten", "0123456789");
  CHECK(read_file(ten, 10) == "0123456789");
  CHECK_THROWS_WITH(read_file(ten, 9), Contains("ten: it has more than the 9 B"));
  CHECK_FALSE(read_file("/proc/self/status").empty());  // says that it has 0 bytes
}

TEST_CASE("where nothing can be written is known before, and leaves no trace") {
  const TemporaryFolder folder;
  const fs::path kept = folder.file("kept", "old");
  check_writable(kept);
  check_writable(folder.path() / "new");
  check_writable("/dev/full");
  CHECK(read_file(kept) == "old");
  CHECK(names_in(folder) == std::vector<std::string>{"kept"});

  const std::vector<std::pair<fs::path, std::string>> refused = {
      {"", "empty"},
      {folder.path(), "it is a folder"},
      {folder.path() / "new" / "", "it is a folder"},
      {folder.path() / "no" / "a", "there is no folder"},
      {kept / "a", "kept"},
      {folder.path() / std::string(300, 'x'), "File name too long"},
      // The temporary's name is longer than the file's.
      {folder.path() / std::string(250, 'x'), "File name too long"},
  };
  for (const auto& [path, says] : refused) {
    CAPTURE(path);
    CHECK_THROWS_WITH(check_writable(path), Contains(says));
    try {
      check_writable(path);
    } catch (const Error& e) {
      CHECK(e.kind() == ErrorKind::bad_input);
    }
  }
}

TEST_CASE("space is asked of the disk, not of devices") {
  const TemporaryFolder folder;
  const int64_t exabytes = int64_t{7} << 60;
  check_space(folder.path() / "new", 1, "the checkpoint");
  CHECK_THROWS_WITH(check_space(folder.path() / "new", exabytes, "the checkpoint"),
                    Contains("new: the checkpoint takes 7.00 EiB") && Contains("short by"));
  check_space("/dev/full", exabytes, "the checkpoint");
}

TEST_CASE("a write that fails keeps the old file and leaves no temporary") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "plan.yaml";
  write_file_atomically(path, "old");
  SECTION("the writer throws half way") {
    CHECK_THROWS_AS(write_file_atomically(path,
                                          [&](int fd) {
                                            write_all(fd, "half", 4, path);
                                            throw std::runtime_error("disk on fire");
                                          }),
                    std::runtime_error);
  }
  SECTION("the disk is full") {
    CHECK_THROWS_WITH(write_file_atomically(path,
                                            [&](int fd) {
                                              write_all(fd, "half", 4, path);
                                              const int full = ::open("/dev/full", O_WRONLY);
                                              REQUIRE(full >= 0);
                                              ::dup2(full, fd);
                                              ::close(full);
                                              write_all(fd, "rest", 4, path);
                                            }),
                      Contains("plan.yaml") && Contains("No space left on device"));
  }
  CHECK(read_file(path) == "old");
  CHECK(names_in(folder) == std::vector<std::string>{"plan.yaml"});
}

TEST_CASE("a writer that fails leaves no new file either") {
  const TemporaryFolder folder;
  CHECK_THROWS(write_file_atomically(folder.path() / "new", [](int) { throw 1; }));
  CHECK(names_in(folder).empty());
}

TEST_CASE("the target is the old file until the writer is done") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a";
  write_file_atomically(path, "old");
  write_file_atomically(path, [&](int fd) {
    write_all(fd, "new", 3, path);
    CHECK(read_file(path) == "old");
  });
  CHECK(read_file(path) == "new");
}

TEST_CASE("failures to write say why") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(write_file_atomically(folder.path() / "no" / "a", "x"),
                    Contains("No such file or directory"));
  CHECK_THROWS_WITH(write_file_atomically(folder.path(), "x"), Contains("Is a directory"));
  try {
    write_file_atomically(folder.path() / "no" / "a", "x");
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::failed);
  }
}

TEST_CASE("a device is written, not replaced") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(write_file_atomically("/dev/full", "x"), Contains("No space left on device"));
  write_file_atomically("/dev/null", "x");
  CHECK(fs::is_character_file("/dev/null"));
}

TEST_CASE("links and permissions survive") {
  const TemporaryFolder folder;
  write_file_atomically(folder.path() / "real", "old");
  REQUIRE(::chmod((folder.path() / "real").c_str(), 0600) == 0);
  fs::create_symlink("real", folder.path() / "link");
  write_file_atomically(folder.path() / "link", "new");
  CHECK(fs::is_symlink(folder.path() / "link"));
  CHECK(read_file(folder.path() / "real") == "new");
  struct stat status {};
  REQUIRE(::stat((folder.path() / "real").c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
}

}  // namespace
}  // namespace longspan
