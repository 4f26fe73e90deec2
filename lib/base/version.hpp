// What this program is: version, commit, compilers and libraries.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdp {

/// "0.1.0 (1a2b3c4d5e6f*)"; the star says that the source differed from the commit. "unknown" where git did not tell.
std::string version_string();
/// What a program says of its version: the program, its version, the compiler, Boost and fmt, then `libraries` as (name,
/// version) and what is off.
std::string version_text(std::string_view program, const std::vector<std::pair<std::string, std::string>>& libraries = {});

}  // namespace fsdp
