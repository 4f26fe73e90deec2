#include "data/output_place.hpp"

#include <cerrno>
#include <cstring>

#include <unistd.h>

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/input_file.hpp"
#include "files/output_file.hpp"

namespace fsdp {

void require_place(const std::filesystem::path& path) {
  const auto refuse = [&](const char* why) {
    return UserError(
        format("cannot write '{}' ({}); give a path in a folder that exists and can be written", path.string(), why));
  };
  const std::filesystem::path folder = folder_of(path);
  if (::access(folder.c_str(), W_OK | X_OK) != 0) throw refuse(std::strerror(errno));
  switch (kind_of(path)) {
    case PathKind::folder:
      throw refuse("it is a folder");
    case PathKind::other:
      throw UserError(format("cannot write '{}' (it exists and is not a plain file); choose another name", path.string()));
    case PathKind::file:
    case PathKind::missing:
      break;
  }
}

void remove_left_over(const std::filesystem::path& temporary) {
  if (kind_of(temporary) != PathKind::file) return;
  OutputFile(temporary, OutputFile::Open::existing).lock();
  check_errno(::unlink(temporary.c_str()) == 0, "remove " + temporary.string());
}

}  // namespace fsdp
