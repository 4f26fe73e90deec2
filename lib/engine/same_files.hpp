// Compares the files that the ranks of a job read: each node may have its own copies.
#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include "comm/communicator.hpp"

namespace fsdp {

using FileLists = std::vector<std::vector<std::filesystem::path>>;

/// Throws CollectiveError, which names a file and two ranks with their hosts, unless all ranks have the same files. `files`
/// returns those of this rank, in any order that is the same on all ranks; it may throw, and paths without a file are left out.
/// Compares their number, names (without folders), sizes and contents. A file with the same inode and times on all ranks is one
/// file of a shared file system, and is not read. If others are read, ranks with the same copies share the work; with
/// `only_sizes` none is read. Call it before the files are used. Collective over world.
void require_same_files(Group& world, const std::function<FileLists()>& files, bool only_sizes = false);

}  // namespace fsdp
