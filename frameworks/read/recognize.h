// Which framework a set of files belongs to. Internal to frameworks/read.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "frameworks/knobs/framework.h"
#include "frameworks/read/config_file.h"

namespace longspan {

/// What a file is to a framework.
struct ClaimedFile {
  std::string at;                          // the key below which its settings stand
  const ConfigCommand* command = nullptr;  // of a script; null: its settings
  int64_t score = 0;                       // keys that the framework knows, marks count more
  bool started = false;                    // the command is a program of the framework
};

/// What a framework makes of the files.
struct FrameworkClaim {
  const Framework* framework = nullptr;
  int64_t score = 0;               // keys that it knows, marks count more
  std::vector<ClaimedFile> files;  // for each file; of a model's config: not used
  std::optional<size_t> refused;   // the first file that it does not know
  bool marked = false;             // whether one of its own marks or programs is there
};

FrameworkClaim claim(const Framework& framework, const std::vector<ConfigFile>& files);

/// The framework that knows the files best. Throws bad_input if there is none, or if each file
/// belongs to a framework, but not to the same.
FrameworkClaim recognize(const std::vector<ConfigFile>& files);

}  // namespace longspan
