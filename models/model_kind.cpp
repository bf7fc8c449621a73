#include "models/model_kind.h"

#include <algorithm>
#include <cctype>
#include <initializer_list>

namespace longspan {
namespace {

bool has_part(const std::string& text, std::initializer_list<const char*> parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](const char* part) { return text.find(part) != std::string::npos; });
}

// Whether a name says how many parameters are active: "Qwen3-30B-A3B".
bool says_active(const std::string& name) {
  for (size_t at = name.find("-A"); at != name.npos; at = name.find("-A", at + 1)) {
    size_t end = at + 2;
    while (end < name.size() && (std::isdigit(name[end]) != 0 || name[end] == '.')) ++end;
    if (end > at + 2 && end < name.size() && name[end] == 'B') return true;
  }
  return false;
}

}  // namespace

std::string kind_by_name(const std::string& name) {
  // A distilled model has the architecture of its base.
  const bool deepseek = has_part(name, {"Deepseek", "DeepSeek"}) && !has_part(name, {"Distill"});
  if (deepseek || says_active(name) ||
      has_part(name, {"Moe", "MoE", "moe", "Mixtral", "GptOss", "gpt-oss", "Dbrx", "dbrx"})) {
    return " is a mixture of experts, which";
  }
  if (has_part(name, {"Mamba", "Rwkv", "Jamba", "Zamba", "RecurrentGemma"})) {
    return " is a state-space or recurrent model, which";
  }
  if (has_part(name, {"T5", "Bart", "Pegasus", "Whisper", "Marian", "EncoderDecoder"})) {
    return " is an encoder-decoder, which";
  }
  return "";
}

}  // namespace longspan
