// Adds the token format of docs/extending-token-format.md from outside the library: npy_tokens.cpp.
#include <boost/test/unit_test.hpp>

#include <fstream>
#include <numeric>

#include "data/formats.hpp"
#include "extending/document.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;

const TokenFormat& npy_tokens();

namespace {

struct Added {
  Added() { add_token_format(npy_tokens()); }
};
BOOST_TEST_GLOBAL_FIXTURE(Added);

std::vector<std::uint32_t> tokens_of(const std::filesystem::path& path) {
  const auto tokens = open_token_file(path);
  std::vector<std::uint32_t> all(tokens->size());
  tokens->read(0, all);
  return all;
}

}  // namespace

BOOST_AUTO_TEST_CASE(tokens_are_written_and_read) {
  const TemporaryFolder folder;
  BOOST_TEST(&find_token_format("npy") == &npy_tokens());
  std::vector<TokenId> tokens(1000);
  std::iota(tokens.begin(), tokens.end(), 70'000);
  for (const TokenFormat* format : token_formats()) {  // the test is the same for all formats
    const auto writer = format->make_writer(folder / "data", 100'000, nullptr, 1'000'000);
    writer->add(std::span(tokens).first(300));
    writer->add(std::span(tokens).subspan(300));
    const std::vector<WrittenFile> files = writer->finish();
    BOOST_TEST(files.front().tokens == 1000u);
    const std::vector<std::uint32_t> read = tokens_of(files.front().path);
    BOOST_TEST(std::equal(read.begin(), read.end(), tokens.begin(), tokens.end()), format->name);
    for (const WrittenFile& file : files) std::filesystem::remove(file.path);
    std::filesystem::remove(folder / "data.idx");
  }
  { npy_tokens().make_writer(folder / "left.npy", 100'000, nullptr, 1'000'000)->add(tokens); }
  BOOST_TEST(std::filesystem::is_empty(std::filesystem::path(folder / "x").parent_path()));
}

// Files that numpy.save() writes, and arrays that are not accepted as tokens.
BOOST_AUTO_TEST_CASE(arrays_of_numpy_are_read) {
  const TemporaryFolder folder;
  const auto write = [&](const std::string& dictionary, std::string_view numbers) {
    std::string header = "\x93NUMPY\x01";
    header += std::string("\0\x76\0", 3) + dictionary;
    header.resize(127, ' ');
    std::ofstream(folder / "a.npy", std::ios::binary) << header << '\n' << numbers;
  };
  write("{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }", std::string_view("\x01\0\x02\0\xff\xff", 6));
  BOOST_TEST(tokens_of(folder / "a.npy") == (std::vector<std::uint32_t>{1, 2, 65535}), boost::test_tools::per_element());
  const auto complaint = [&] { return message_of([&] { tokens_of(folder / "a.npy"); }); };
  write("{'descr': '<u2', 'fortran_order': False, 'shape': (4,), }", std::string_view("\x01\0\x02\0\xff\xff", 6));
  CHECK_CONTAINS(complaint(), "its header says 4 tokens");
  write("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", "1234");
  CHECK_CONTAINS(complaint(), "type <f4");
  write("{'descr': '<u2', 'fortran_order': False, 'shape': (1, 2), }", "1234");
  CHECK_CONTAINS(complaint(), "not of one dimension");
  write("{", "");
  CHECK_CONTAINS(complaint(), "its header has no");
}

BOOST_AUTO_TEST_CASE(the_document_shows_this) {
  const std::filesystem::path root = std::filesystem::path(FSDP_TEST_DATA).parent_path().parent_path();
  const std::string page = read_file(root / "docs" / "extending-token-format.md");
  BOOST_TEST(page.find("```cpp\n" + read_file(root / "tests/extending/npy_tokens.cpp") + "```\n") != std::string::npos);
  // In the library, a format is only in the two files that the page names. No other file names its row.
  BOOST_TEST(page.find("`lib/data/formats.cpp`") != std::string::npos);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root / "lib"))
    if (entry.is_regular_file() && entry.path().filename() != "formats.cpp" && entry.path().filename() != "llmc_tokens.cpp")
      BOOST_TEST(read_file(entry.path()).find("llmc_tokens()") == std::string::npos, entry.path().string());
}
