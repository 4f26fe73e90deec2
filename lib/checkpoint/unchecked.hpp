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

/// What such a file says, as a process of its own has read it with HDF5. Whoever has this need not call HDF5, which may crash
/// in one process and not in another: where it reads beyond the end of its memory, what lies there decides.
struct UncheckedFile {
  /// Elements that lie in the file one behind the other, as `type` has them on this machine, from `offset` on.
  struct Plain {
    DType type;
    std::uint64_t offset;
  };
  struct Dataset {
    Shape shape;
    std::optional<Plain> plain;  // else HDF5 is needed to read them, and has done so once in that process
  };
  std::map<std::string, std::string> texts;       // attributes of the file that readers of ours ask for, if it has them
  std::map<std::string, std::uint64_t> integers;  // likewise
  std::map<std::string, Dataset> datasets;        // by name: "wte.weight", "exp_avg/wte.weight"
};

/// Reads the attributes in a process of its own, and, if the file's format is `kind`, the datasets of these groups and of those
/// that it names as states. Throws DamagedError, with what the user can do, if that process does not come to its end; and what
/// h5::File throws.
UncheckedFile read_unchecked(const std::filesystem::path& path, const std::string& kind, std::vector<std::string> groups,
                             const std::string& remedy);

}  // namespace fsdp
