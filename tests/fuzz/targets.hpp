// The readers of foreign files, each as a function of the bytes of one file, with files that it accepts. For any bytes, a
// reader may refuse them with one of its errors. It must not crash, hang, or return numbers that were not written, if the
// format has checksums.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::fuzz {

/// A reader accepted damaged bytes, or changed a foreign file.
struct Believed : std::logic_error {
  using std::logic_error::logic_error;
};

struct Target {
  std::vector<std::string> corpus;  // files that the reader accepts
  bool is_text = false;
  /// Writes the bytes to the reader's file, and reads all its contents. Returns true if the reader accepted them. Throws
  /// exceptions that a reader must not throw.
  std::function<bool(std::string_view bytes)> accepts;
};

/// `make` fills the target's empty folder with the other files that the reader needs.
struct NamedTarget {
  const char* name;
  Target (*make)(const std::filesystem::path& folder);
};
std::span<const NamedTarget> all_targets();
/// nullptr if there is none.
const NamedTarget* find_target(std::string_view name);

/// A new folder, in memory if the system allows it, which is removed with its contents.
class WorkingFolder {
 public:
  WorkingFolder();
  WorkingFolder(const WorkingFolder&) = delete;
  ~WorkingFolder();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace fsdp::fuzz
