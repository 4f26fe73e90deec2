// How messages of the library read in a program of a user's. Not for users.
#pragma once

#include <string>

namespace fsdp {

/// The quantities that a message names between backquotes are called as api/ calls them: "lower `micro-batch`" becomes "lower
/// batch_size".
std::string in_words_of_api(std::string message);

}  // namespace fsdp
