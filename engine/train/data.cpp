#include "engine/train/data.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "engine/train/counter_random.h"
#include "engine/train/input_file.h"

namespace longspan {
namespace {

enum class Format { text, uint16, uint32 };

const char* word(Format format) {
  if (format == Format::text) return "text";
  return format == Format::uint16 ? "uint16" : "uint32";
}

int64_t id_bytes(Format format) {
  if (format == Format::text) return 1;
  return format == Format::uint16 ? 2 : 4;
}

Format parse_format(const std::string& format, const std::filesystem::path& path) {
  if (format == "text") return Format::text;
  if (format == "uint16") return Format::uint16;
  if (format == "uint32") return Format::uint32;
  if (format != "auto") {
    throw bad_input("token format: expected text, uint16, uint32 or auto, got \"{}\"", format);
  }
  if (path.extension() == ".bin") return Format::uint16;
  return path.extension() == ".u32" ? Format::uint32 : Format::text;
}

/// Ids u^2 * V for uniform u: skewed towards small ids, so that a model can learn something.
class SyntheticTokens final : public TokenSource {
 public:
  explicit SyntheticTokens(int64_t vocab) : vocab_(vocab) {}

  void sample(int64_t index, int64_t sequence, int64_t first, int64_t count,
              int32_t* out) const override {
    const uint64_t begin = static_cast<uint64_t>(index) * static_cast<uint64_t>(sequence) +
                           static_cast<uint64_t>(first);
    for (int64_t i = 0; i < count; ++i) {
      const double u = uniform_at(key_, begin + static_cast<uint64_t>(i));
      const auto id = static_cast<int64_t>(u * u * static_cast<double>(vocab_));
      out[i] = static_cast<int32_t>(std::min(id, vocab_ - 1));
    }
  }
  int64_t tokens() const override { return INT64_MAX; }

 private:
  static constexpr uint64_t key_ = random_key(0, "synthetic tokens");
  int64_t vocab_;
};

class FileTokens final : public TokenSource {
 public:
  FileTokens(const std::filesystem::path& path, Format format, int64_t sequence, int64_t vocab)
      : file_(path), format_(format), vocab_(vocab), tokens_(file_.size() / id_bytes(format)) {
    if (file_.size() % id_bytes(format) != 0) {
      throw bad_input("{}: {} bytes are not a whole number of {} ids of {} bytes", path.string(),
                      file_.size(), word(format), id_bytes(format));
    }
    if (tokens_ <= sequence) {
      throw bad_input(
          "{}: holds {} ({}), but a sequence of {} needs at least {}: use more "
          "data or a shorter sequence",
          path.string(), counted(tokens_, "token", "tokens"), word(format), sequence, sequence + 1);
    }
    if (format == Format::text && vocab < 256) {
      throw bad_input(
          "{}: text is read as bytes, which need a vocabulary of at least 256; the "
          "model has {}",
          path.string(), vocab);
    }
    check_all_ids();
  }

  void sample(int64_t index, int64_t sequence, int64_t first, int64_t count,
              int32_t* out) const override {
    // The last label of a window is the first input of the next.
    const int64_t windows = sequence > 0 ? (tokens_ - 1) / sequence : 0;
    if (windows == 0 || index < 0) {
      throw bad_input("{}: cannot take sample {} of {} tokens from {}", file_.path().string(),
                      index, sequence + 1, tokens_);
    }
    decode(index % windows * sequence + first, count, out);
  }
  int64_t tokens() const override { return tokens_; }

 private:
  static constexpr int64_t block_ = int64_t{1} << 18;  // tokens read at a time

  void check_all_ids() const {
    const bool any_id_is_valid = vocab_ >= int64_t{1} << (8 * id_bytes(format_));
    if (any_id_is_valid) return;
    std::vector<int32_t> ids(static_cast<size_t>(std::min(block_, tokens_)));
    for (int64_t first = 0; first < tokens_; first += block_) {
      decode(first, std::min(block_, tokens_ - first), ids.data());
    }
  }

  /// Checks the ids again: the file may have changed since it was opened, and an id beyond the
  /// vocabulary would read out of bounds of the embedding table.
  template <class Id>
  void decode_as(int64_t first, int64_t count, int32_t* out) const {
    std::vector<Id> ids(static_cast<size_t>(std::min(block_, count)));
    for (int64_t done = 0; done < count; done += block_) {
      const int64_t part = std::min(block_, count - done);
      constexpr auto bytes = static_cast<int64_t>(sizeof(Id));
      file_.read((first + done) * bytes, ids.data(), part * bytes);
      for (int64_t i = 0; i < part; ++i) {
        const int64_t id = ids[static_cast<size_t>(i)];
        if (id >= vocab_) {
          throw bad_input(
              "{}: token {} is {}, beyond the vocabulary of {}: another tokenizer, or "
              "not {}",
              file_.path().string(), first + done + i, id, vocab_, word(format_));
        }
        out[done + i] = static_cast<int32_t>(id);
      }
    }
  }

  void decode(int64_t first, int64_t count, int32_t* out) const {
    if (format_ == Format::text) return decode_as<uint8_t>(first, count, out);
    if (format_ == Format::uint16) return decode_as<uint16_t>(first, count, out);
    decode_as<uint32_t>(first, count, out);
  }

  InputFile file_;
  Format format_;
  int64_t vocab_;
  int64_t tokens_;
};

}  // namespace

std::unique_ptr<TokenSource> open_tokens(const std::string& reference, const std::string& format,
                                         int64_t sequence, int64_t vocab) {
  if (sequence < 1 || vocab < 1 || vocab > INT32_MAX) {
    throw bad_input("{}: expected a sequence > 0 and a vocabulary in [1, 2^31), got {} and {}",
                    reference, sequence, vocab);
  }
  const Format parsed = parse_format(format, reference);
  if (reference == "synthetic") {
    if (format != "auto") {
      throw bad_input("synthetic: its tokens are in no file; leave the format {} out", format);
    }
    return std::make_unique<SyntheticTokens>(vocab);
  }
  return std::make_unique<FileTokens>(reference, parsed, sequence, vocab);
}

}  // namespace longspan
