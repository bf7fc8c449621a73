// Tables on standard output that fit the width of the text.
#pragma once

#include <string>
#include <vector>

namespace longspan::cli {

/// A table with a heading. Columns are as wide as their contents. If the table is wider than
/// text_width(), words are wrapped and columns are left out, those with the highest `drop` first. A
/// line below the table names the columns left out.
class Table {
 public:
  struct Column {
    std::string heading;
    bool right = true;
    int drop = 0;  ///< 0: left out last
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  /// REQUIRES: as many cells as columns.
  void add(std::vector<std::string> cells);
  /// Writes the table to standard output, indented by two.
  void print() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace longspan::cli
