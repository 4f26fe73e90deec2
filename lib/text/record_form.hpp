// The forms in which programs store conversations as JSON records. A form is a row of a table in record_form.cpp.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace fsdp {

/// Names a form, and the names that a data set has in place of the form's own.
struct RecordForm {
  std::string name = "messages";
  std::string names = {};  // such as "conversations=dialog,from=speaker"
  bool operator==(const RecordForm&) const = default;
};

/// The names of all forms, each with a sentence for the help. The first is the form that read_conversation() reads.
std::vector<std::pair<std::string, std::string>> record_forms();

/// Rewrites records of a form as records that read_conversation() reads.
class RecordReader {
 public:
  struct Form;
  static const std::vector<Form>& forms();
  /// Throws UserError if the form has none of the names.
  explicit RecordReader(const RecordForm& form = {});
  /// If the record does not have the form, sets `problem` to the reason. Keys that the form does not use are kept.
  nlohmann::ordered_json read(const nlohmann::ordered_json& record, std::string& problem) const;

 private:
  const Form* form_;
  std::map<std::string, std::string> names_;  // the data set's names, by the form's own
};

}  // namespace fsdp
