// fsdp-data: checks the data of a run before it starts.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/options.hpp"
#include "fsdp-data/survey.hpp"
#include "options/options.hpp"
#include "text/shown_tokens.hpp"

namespace fsdp {

struct DataOptions {
  TrainOptions train;
  bool json = false;
  std::filesystem::path html;
  std::vector<std::string> allow;  // names of checks
  std::size_t examples = 10;
};

OptionTable data_option_table(DataOptions& options);

/// What a check found in a data set.
struct Finding {
  const DataCheck* check;
  std::string source, message;
  bool is_allowed = false;
};

struct DataReport {
  std::vector<SurveyedSource> sources;
  std::vector<Finding> findings;
  std::vector<std::uint64_t> lengths;  // Survey::lengths()
  std::vector<WayOfReading> ways;
  struct Shown {
    std::string source;
    std::vector<ShownText> text;
  };
  std::vector<Shown> examples;

  /// Returns true if something was found that costs a run and is not allowed.
  bool is_bad() const;
};

/// Reads all data that the options name. Throws UserError.
DataReport look_at_data(const DataOptions& options, const OptionTable& table);

/// The report as text for `out`, as one JSON object, and as a page.
std::string describe(const DataReport& report, std::FILE* out);
nlohmann::ordered_json to_json(const DataReport& report);
std::string to_html(const DataReport& report);

}  // namespace fsdp
