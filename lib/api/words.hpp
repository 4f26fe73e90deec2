// The fields of options structs: the library's messages in the words of the API, and comparisons over ranks. Internal.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/options.hpp"
#include "machine/compute_device.hpp"

namespace fsdp {

class Group;

/// Messages of the library name quantities between backquotes, because fsdp-train and the API have different names for them.
/// Replaces these quantities by the names of the API: "lower `micro-batch`" becomes "lower batch_size".
std::string in_words_of_api(std::string message);

/// A field of an options struct (`name`), the corresponding option of fsdp-train (`option`), and its value. An empty value
/// means that the option is not set.
struct Field {
  std::string option, name;
  std::optional<std::string> value;
};
/// Sets the options in `table`, which checks them. The messages of UserError name the fields instead of the options.
void set_fields(OptionTable& table, const std::vector<Field>& fields);
/// Runs `work`. The messages of UserError name the fields instead of the options.
void with_field_names(const std::vector<Field>& fields, const std::function<void()>& work);

/// One line for each field, for require_same_lines().
std::string text_of(const std::vector<Field>& fields);
/// Throws UserError unless all ranks pass the same lines: "the ranks PROBLEM ('keep_last 2' here, 'keep_last 1' on rank 0, but
/// REASON); give all ranks the same". Collective over world; all ranks throw the same CollectiveError.
void require_same_lines(Group& world, const std::string& mine, const char* problem, const char* reason);

/// Converts "auto", "cpu" or "cuda". Throws UserError.
DeviceChoice device_choice(const std::string& device);

}  // namespace fsdp
