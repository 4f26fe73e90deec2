// The tables of docs/simulator.md.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "simulator/validation.hpp"

namespace fsdp::simulator {

struct Report {
  const std::vector<Row>& rows;
  std::vector<Prediction> predictions;  // predict_all(rows)
};

/// Returns a table of the page. Throws UserError if there is no table with this name.
std::string table_of(std::string_view name, const Report& report);

/// Replaces the text between the lines "<!-- begin NAME -->" and "<!-- end NAME -->" of the file by table_of(NAME).
void write_page(const std::filesystem::path& path, const Report& report);

}  // namespace fsdp::simulator
