// Translates the library's messages for a user's program. Not for users.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/options.hpp"
#include "train/compute_device.hpp"

namespace fsdp {

/// Replaces the quantities that a message names between backquotes by their names in the API: "lower `micro-batch`" becomes
/// "lower batch_size".
std::string in_words_of_api(std::string message);

/// A field of a struct of options, and the corresponding option of fsdp-train; without a value the option is not given.
struct Field {
  std::string option, name;
  std::optional<std::string> value;
};
/// Sets the options, with all checks of the table. Throws UserError with the names of the fields instead of the options.
void set_fields(OptionTable& table, const std::vector<Field>& fields);

/// Converts "auto", "cpu" or "cuda". Throws UserError.
DeviceChoice device_choice(const std::string& device);

}  // namespace fsdp
