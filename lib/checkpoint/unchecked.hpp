// HDF5 files that nothing vouches for: HDF5 may crash, or never return, where one is damaged or meant to.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.hpp"
#include "tensor/shape.hpp"

namespace fsdp {

/// The contents of such a file, as a child process has read it with HDF5. With this the caller need not call HDF5 itself. HDF5
/// may crash in one process and not in another, because it may read beyond its memory.
struct UncheckedFile {
  /// Elements that are consecutive in the file from `offset` on, in this machine's format of `type`.
  struct Plain {
    DType type;
    std::uint64_t offset;
  };
  struct Dataset {
    Shape shape;
    std::optional<Plain> plain;  // without it only HDF5 can read them; the child process has tried that
  };
  std::map<std::string, std::string> texts;       // attributes of the file that our readers use, if it has them
  std::map<std::string, std::uint64_t> integers;  // likewise
  std::map<std::string, Dataset> datasets;        // by name: "wte.weight", "exp_avg/wte.weight"
};

/// Reads the attributes in a child process, and, if the file's format is `kind`, the datasets of `groups` and of the states
/// that it names. Throws DamagedError with `remedy` if that process crashes or does not end in time, and what h5::File
/// throws.
UncheckedFile read_unchecked(const std::filesystem::path& path, const std::string& kind, std::vector<std::string> groups,
                             const std::string& remedy);

}  // namespace fsdp
