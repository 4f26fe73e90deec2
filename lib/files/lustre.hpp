// The striping and quotas of folders on Lustre, read and set by its program lfs. Lustre stores a file in stripes on several
// storage targets (OSTs); new files get the layout of their folder (Lustre Operations Manual 2.x, "Managing File Layout").
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace fsdp {

/// Returns true if the folder is on Lustre, by the type of its file system. False if it does not exist.
bool is_on_lustre(const std::filesystem::path& folder);

/// A striping that a user asks for.
struct Stripe {
  int count = 1;     // storage targets of a file; -1: all
  std::string size;  // as lfs takes it: "4M"; empty: the folder's own
};
/// Reads "COUNT" or "COUNT:SIZE"; empty unless COUNT is -1 or at least 1, and SIZE, with an optional K, M or G, is a multiple
/// of 64 KiB.
std::optional<Stripe> parse_stripe(const std::string& text);

/// Describes the layout in what `lfs getstripe -d` prints for a folder: "4 targets in stripes of 4 MiB", or, with components,
/// "1 target in stripes of 1 MiB up to 100 MiB, then all targets in stripes of 4 MiB". Empty if the text has no layout. Pure
/// function.
std::string describe_striping(const std::string& printed);

/// The striping of a folder on Lustre, in words, or why it is not known.
std::string striping_of(const std::filesystem::path& folder);
/// Sets the striping of new files in a folder on Lustre. Returns why it could not, if there is no lfs; else an empty text.
/// Throws UserError with what lfs printed if it refuses.
std::string set_striping(const std::filesystem::path& folder, const Stripe& stripe);

/// What a quota leaves; empty: no limit.
struct QuotaLeft {
  std::optional<std::uint64_t> bytes, files;
};
/// Reads what `lfs quota -q` prints for one user, group or project: the folder, then KiB used, soft limit, hard limit and grace
/// time, and the same for files. A limit of 0 is none, and a used number with '*' is above its soft limit. Pure function.
QuotaLeft parse_quota(const std::string& printed);
/// The least that the quotas of this user and of the folder's group and project leave on Lustre; nothing if lfs does not
/// answer.
QuotaLeft quota_left(const std::filesystem::path& folder);

}  // namespace fsdp
