#include "models/model_kind.h"

#include <algorithm>
#include <initializer_list>

namespace longspan {
namespace {

bool has_part(const std::string& text, std::initializer_list<const char*> parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](const char* part) { return text.find(part) != std::string::npos; });
}

}  // namespace

std::string kind_by_name(const std::string& name) {
  if (has_part(name, {"Mamba", "Rwkv", "Jamba", "Zamba", "RecurrentGemma"})) {
    return " is a state-space or recurrent model, which";
  }
  if (has_part(name, {"T5", "Bart", "Pegasus", "Whisper", "Marian", "EncoderDecoder"})) {
    return " is an encoder-decoder, which";
  }
  return "";
}

}  // namespace longspan
