// The readers of files from outside, each as a function of the bytes of one file, with files that it accepts. Whatever the
// bytes are, a reader may refuse them in its own words and nothing else: it must not crash, hang, or give numbers that are not
// those which were written, where the format can tell.
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

/// A reader took damaged bytes for what was written, or changed what is not its own.
struct Believed : std::logic_error {
  using std::logic_error::logic_error;
};

struct Target {
  std::vector<std::string> corpus;  // each is accepted
  bool is_text = false;
  /// Puts the bytes where the reader expects them, and reads all that it offers. Returns whether it accepted them. Throws
  /// whatever a reader must not throw.
  std::function<bool(std::string_view bytes)> accepts;
};

/// `make` fills an empty folder, in which the target lives, with what stands around the one file.
struct NamedTarget {
  const char* name;
  Target (*make)(const std::filesystem::path& folder);
};
std::span<const NamedTarget> all_targets();
/// nullptr if there is none.
const NamedTarget* find_target(std::string_view name);

/// A fresh folder in memory where the system has such, removed with all that is in it.
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
