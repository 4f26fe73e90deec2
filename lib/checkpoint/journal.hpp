// The folder OUT.tmp in which fsdp-consolidate makes OUT, and the journal in it, by which a call that was killed is gone on
// with. A journal is believed in one thing alone: that earlier calls, made for the same, had written bytes with these
// checksums. Where they lie is computed anew, and what lies there is compared.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "files/output_file.hpp"

namespace fsdp {

/// OUT.tmp. What a work folder may hold: `lock`, `journal`, and `model` and `layout`, each a file or a folder of files that we
/// name.
class WorkFolder {
 public:
  /// Makes the folder, open to nobody else, or takes up one that an earlier call left. Throws UserError if anything else has
  /// its name: it stays as it is.
  explicit WorkFolder(const std::filesystem::path& folder);
  WorkFolder(const WorkFolder&) = delete;
  /// Removes the folder if nothing is in it, and it is ours.
  ~WorkFolder();
  std::filesystem::path model() const { return folder_ / "model"; }
  /// Where a second call lays out the same files again, to compare them with `model`.
  std::filesystem::path layout() const { return folder_ / "layout"; }
  std::filesystem::path journal() const { return folder_ / "journal"; }
  /// Removes `model` or `layout`. Throws RunError if there is something in it that is not ours.
  void remove(const std::filesystem::path& result) const;
  /// Removes all but the lock.
  void clear() const;

 private:
  std::filesystem::path folder_;
  bool is_ours_ = true;  // an empty one may be anybody's
};

/// A sealed object that says what is made, then the checksum of each piece that was written, a line of fixed length each.
class Journal {
 public:
  /// The journal of an earlier call that made the same result, or null.
  static std::unique_ptr<Journal> find(const std::filesystem::path& path, const nlohmann::ordered_json& identity);
  static std::unique_ptr<Journal> begin(const std::filesystem::path& path, const nlohmann::ordered_json& identity);
  /// Whether the file is a journal at all. A folder that has one is ours.
  static bool is_one(const std::filesystem::path& path);
  /// Whether the file is what remains of a call that was killed while it wrote the beginning of a journal.
  static bool is_beginning(const std::filesystem::path& path);

  /// Whether an earlier call wrote these bytes as piece `k`; whether it wrote piece `k`.
  bool has(std::size_t k, std::span<const std::byte> bytes) const;
  bool has(std::size_t k) const { return k < checksums_.size(); }
  /// Throws CallError.
  void note(std::size_t k, std::span<const std::byte> bytes);

 private:
  Journal(const std::filesystem::path& path, std::size_t start) : output_(path, OutputFile::Open::existing), start_(start) {}
  OutputFile output_;
  std::size_t start_;  // of the first line
  std::vector<std::string> checksums_;
};

}  // namespace fsdp
