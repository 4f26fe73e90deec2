// The files of the ranks are compared: number, names, sizes and contents.
#include "engine/same_files.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "comm/threads/threads.hpp"
#include "support/files.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

using Files = std::vector<std::pair<std::string, std::string>>;  // names and contents

/// Writes the files of each rank into a folder of its own, or of `folder_of[rank]`, and compares them. Returns the message,
/// which all ranks must get with exit code 2; empty if the files are the same.
std::string compare(const std::vector<Files>& of_ranks, bool only_sizes = false, std::vector<int> folder_of = {}) {
  const auto root = std::filesystem::temp_directory_path() / ("fsdp-same-files-" + std::to_string(getpid()));
  std::filesystem::remove_all(root);
  std::vector<std::vector<std::filesystem::path>> paths;
  for (std::size_t r = 0; r < of_ranks.size(); ++r) {
    const auto folder = root / std::to_string(folder_of.empty() ? static_cast<int>(r) : folder_of[r]);
    std::filesystem::create_directories(folder);
    paths.emplace_back();
    for (const auto& [name, content] : of_ranks[r]) {
      paths.back().push_back(folder / name);
      if (!std::filesystem::exists(folder / name)) write_file(folder / name, content);
    }
    paths.back().push_back(folder / "no such file");
  }
  std::vector<std::string> said(of_ranks.size());
  run_ranks(static_cast<int>(of_ranks.size()), [&](Communicator& world) {
    const auto me = static_cast<std::size_t>(world.rank());
    try {
      require_same_files(
          world, [&] { return FileLists{paths[me]}; }, only_sizes);
    } catch (const CollectiveError& error) {
      said[me] = error.what();
      if (error.exit_code != 2) said[me] += " but the exit code is wrong";
    }
  });
  for (const std::string& one : said) BOOST_TEST(one == said[0]);
  std::filesystem::remove_all(root);
  return said[0];
}

void refused(const std::vector<Files>& of_ranks, const std::string& words, bool only_sizes = false,
             const std::vector<int>& folder_of = {}) {
  const std::string message = compare(of_ranks, only_sizes, folder_of);
  BOOST_TEST(message.find(words) != message.npos, message << " lacks " << words);
}

const Files files = {{"a.bin", "tokens"}, {"b.bin", std::string((5 << 20) + 7, 'x')}, {"empty", ""}};

Files changed(std::size_t file, std::size_t at) {
  Files copy = files;
  copy[file].second[at] = '!';
  return copy;
}

}  // namespace

BOOST_AUTO_TEST_CASE(equal_files_are_accepted) {
  for (std::size_t ranks = 1; ranks <= 4; ++ranks) {
    BOOST_TEST(compare(std::vector(ranks, files)) == "");
    BOOST_TEST(compare(std::vector(ranks, files), true) == "");
    BOOST_TEST(compare(std::vector(ranks, files), false, std::vector(ranks, 0)) == "");
    BOOST_TEST(compare(std::vector(ranks, Files())) == "");
  }
  BOOST_TEST(compare(std::vector(4, files), false, {0, 0, 1, 1}) == "");
  BOOST_TEST(compare({changed(1, 3)}) == "");
}

BOOST_AUTO_TEST_CASE(other_files_are_refused_with_file_and_ranks) {
  for (std::size_t ranks = 2; ranks <= 4; ++ranks)
    for (const std::size_t at : {std::size_t{0}, std::size_t{3} << 20, files[1].second.size() - 1}) {
      std::vector<Files> all(ranks, files);
      all.back() = changed(1, at);
      const std::string last = std::to_string(ranks - 1);
      refused(all, "b.bin has other contents on rank " + last + " (");
      BOOST_TEST(compare(all, true) == "");
      std::swap(all.front(), all.back());
      refused(all, "b.bin has other contents on rank 1 (");
    }
  // The second rank of a node has another copy than the first one: each rank's file is compared.
  refused({files, files, changed(0, 0), files}, "a.bin has other contents on rank 2 (", false, {0, 0, 1, 0});
  // A block of another file with the same contents does not make up for it.
  const std::string one(1 << 20, '1'), two(1 << 20, '2');
  refused({{{"a", one + two}}, {{"a", two + one}}}, "a has other contents on rank 1 (");
  refused({{{"a", one}, {"b", two}}, {{"a", two}, {"b", one}}}, "a has other contents on rank 1 (");
  // As many bytes in all, but of other files.
  for (const bool only_sizes : {false, true}) {
    refused({files, {files[0], {"b.bin", "short"}, files[2]}, files}, "/b.bin (5 bytes) on rank 1 (", only_sizes);
    refused({files, files, {files[0], files[1]}}, "file 3 of the run is missing on rank 2 (", only_sizes);
    refused({{files[0], files[1]}, files}, "/empty (0 bytes) on rank 1 (", only_sizes);
    refused({files, {files[1], files[0], files[2]}}, "/b.bin (5242887 bytes) on rank 1 (", only_sizes);
    refused({files, {}}, "file 1 of the run is missing on rank 1 (", only_sizes);
    refused({{}, files}, "/a.bin (6 bytes) on rank 1 (", only_sizes);
  }
}

BOOST_AUTO_TEST_CASE(a_rank_that_cannot_list_its_files_is_named) {
  run_ranks(3, [](Communicator& world) {
    BOOST_CHECK_EXCEPTION(require_same_files(world,
                                             [&]() -> FileLists {
                                               if (world.rank() == 1) throw UserError("no data");
                                               return {};
                                             }),
                          CollectiveError,
                          [](const CollectiveError& error) { return error.speaker == 1 && error.exit_code == 2; });
  });
}
