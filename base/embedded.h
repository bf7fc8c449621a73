// Data files compiled into a library, so that an installed binary needs no data folder. The CMake
// function longspan_embed writes the source that defines them.
#pragma once

#include <string_view>

namespace longspan {

/// One file, as it was at build time. Both views live as long as the program.
struct EmbeddedFile {
  std::string_view name;  ///< without folder and extension: "llama-3.1-8b"
  std::string_view text;
};

}  // namespace longspan
