// The version of this program: release, commit, compiler and libraries.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdp {

/// The release and the commit, as in "0.1.0 (1a2b3c4d5e6f*)". The commit is "unknown" if git could not report it. The star
/// means that the source differed from the commit.
std::string version_string();
/// The text that the option "version" prints: the program's name and version, then one line each for the compiler, Boost, fmt
/// and every (name, version) of `libraries`.
std::string version_text(std::string_view program, const std::vector<std::pair<std::string, std::string>>& libraries = {});

}  // namespace fsdp
