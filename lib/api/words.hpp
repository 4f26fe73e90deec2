// How messages of the library read in a program of a user's. Not for users.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/options.hpp"
#include "train/compute_device.hpp"

namespace fsdp {

/// The quantities that a message names between backquotes are called as api/ calls them: "lower `micro-batch`" becomes "lower
/// batch_size".
std::string in_words_of_api(std::string message);

/// A field of a struct of options, and the option of fsdp-train that it is. Without a value it is not given.
struct Field {
  std::string option, name;
  std::optional<std::string> value;
};
/// Sets the options, with all checks of the table. Throws UserError, in which options are called by the names of the fields.
void set_fields(OptionTable& table, const std::vector<Field>& fields);

/// "auto", "cpu" or "cuda". Throws UserError.
DeviceChoice device_choice(const std::string& device);

}  // namespace fsdp
