// Sealed files: readers get exactly the bytes that were written, or an error.
#include <boost/test/unit_test.hpp>
#include <random>

#include "base/format.hpp"
#include "files/sealed_file.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

std::string noise(std::size_t bytes) {
  std::mt19937 random(static_cast<unsigned>(bytes));
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

/// Writes `contents` in pieces; the sealer gets some of them from memory. Returns the size and checksum of the whole file.
FileSum seal(const std::filesystem::path& path, const std::string& contents) {
  OutputFile file(path);
  file.write(0, contents.data(), contents.size());
  Sealer sealer(file, contents.size());
  const std::size_t third = contents.size() / 3;
  sealer.add(third, contents.data() + third, third);
  sealer.name({"middle", third, third, checksum(contents.data() + third, third)});
  sealer.name_and_sum({"end", 2 * third, contents.size() - 2 * third});
  const FileSum sum = sealer.finish();
  file.finish();
  return sum;
}

std::string read_all(const CheckedFile& file) {
  std::string out(file.size(), '\0');
  file.read(0, out.data(), out.size());
  return out;
}

}  // namespace

BOOST_AUTO_TEST_CASE(contents_of_any_length_come_back) {
  for (const std::size_t bytes : {0, 1, 100, 4095, 4096, 4097, 8192, 262144, 262145, 1000003}) {
    const TemporaryFolder folder;
    const std::string contents = noise(bytes);
    const FileSum sum = seal(folder / "a", contents);
    BOOST_TEST((sum == sum_file(folder / "a")));
    const CheckedFile file(folder / "a", Verify::yes, sum);
    BOOST_TEST(file.is_checked());
    BOOST_TEST(file.size() == bytes);
    BOOST_TEST((read_all(file) == contents));
    std::mt19937 random(1);
    for (int i = 0; i < 200; ++i) {
      const std::size_t begin = random() % (bytes + 1), size = random() % (bytes - begin + 1);
      std::string out(size, '-');
      file.read(begin, out.data(), size);
      BOOST_REQUIRE(out == contents.substr(begin, size));
    }
    char out;
    CHECK_CONTAINS(message_of<DamagedError>([&] { file.read(bytes, &out, 1); }), "after the end of its contents");
  }
}

BOOST_AUTO_TEST_CASE(blocks_are_small_unless_there_would_be_too_many) {
  constexpr std::uint64_t GiB = std::uint64_t{1} << 30;
  BOOST_TEST(BlockSums::block_bytes_for(0) == 4096u);
  BOOST_TEST(BlockSums::block_bytes_for(GiB / 4) == 4096u);
  BOOST_TEST(BlockSums::block_bytes_for(GiB) == 16384u);
  BOOST_TEST(BlockSums::block_bytes_for(1000 * GiB) == 1048576u);
}

// Any changed bit is noticed: in the contents, reads of its block are refused; after the contents, the file is refused.
BOOST_AUTO_TEST_CASE(no_bit_changes_unnoticed) {
  const TemporaryFolder folder;
  const std::string contents = noise(3 * 4096 + 77);
  const FileSum sum = seal(folder / "a", contents);
  const std::string whole = read_file(folder / "a");
  for (std::size_t at = 0; at < whole.size(); at += at < contents.size() ? 97 : 1)
    for (const int bit : {0, 7}) {
      std::string bad = whole;
      bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
      write_file(folder / "b", bad);
      const bool in_magic = at + 8 >= whole.size();  // then it is a file without a seal
      const std::string message = message_of<DamagedError>([&] {
        const CheckedFile file(folder / "b", Verify::yes, sum);
        read_all(file);
      });
      CHECK_CONTAINS(message, "b is damaged");
      if (at < contents.size()) CHECK_CONTAINS(message, format("bytes {} to ", at / 4096 * 4096));
      if (in_magic) CHECK_CONTAINS(message, "its checksums are missing");
      if (at > contents.size() / 3 && at < contents.size() / 3 * 2) CHECK_CONTAINS(message, ", in middle");
      if (at < contents.size()) {  // other blocks can still be read
        const CheckedFile file(folder / "b");
        const std::size_t other = at < 4096 ? 4096 : 0;
        std::string out(4096, '-');
        file.read(other, out.data(), out.size());
        BOOST_TEST((out == contents.substr(other, 4096)));
      }
    }
}

BOOST_AUTO_TEST_CASE(a_file_may_have_to_have_a_seal) {
  const TemporaryFolder folder;
  write_file(folder / "a", noise(600000));
  FileSum sum = sum_file(folder / "a");
  BOOST_TEST(!CheckedFile(folder / "a").is_checked());
  for (const Verify verify : {Verify::yes, Verify::no})
    CHECK_CONTAINS(message_of<DamagedError>([&] { CheckedFile(folder / "a", verify, sum); }), "its checksums are missing");
  ++sum.bytes;
  CHECK_CONTAINS(message_of<DamagedError>([&] { CheckedFile(folder / "a", Verify::yes, sum); }),
                 "600000 bytes, but 600001 were");
}

BOOST_AUTO_TEST_CASE(without_verifying_only_what_is_parsed_is_compared) {
  const TemporaryFolder folder;
  const std::string contents = noise(100000);
  seal(folder / "a", contents);
  std::string bad = read_file(folder / "a");
  bad[50000] ^= 1;  // in the part named middle
  write_file(folder / "a", bad);
  const CheckedFile file(folder / "a", Verify::no);
  std::string out(contents.size() / 3, '\0');
  file.read(contents.size() / 3, out.data(), out.size());
  BOOST_TEST((out == bad.substr(contents.size() / 3, out.size())));
  CHECK_CONTAINS(message_of<DamagedError>([&] { read_all(file); }), "in middle");  // the file also has HDF5's structures
  out.resize(contents.size());
  message_of<DamagedError>([&] { file.read(0, out.data(), out.size(), /*numbers=*/false); });
}

BOOST_AUTO_TEST_CASE(a_seal_may_be_a_file_of_its_own) {
  const TemporaryFolder folder;
  const std::string contents = noise(50001);
  write_file(folder / "a", contents);
  BOOST_TEST(!CheckedFile::sealed_by(folder / "a.xxh3", folder / "a", Verify::yes).is_checked());
  {
    OutputFile file(folder / "a", OutputFile::Open::existing);
    write_text_file_durably(folder / "a.xxh3", Sealer(file, contents.size()).trailer());
  }
  const auto open = [&] { return CheckedFile::sealed_by(folder / "a.xxh3", folder / "a", Verify::yes); };
  BOOST_TEST((read_all(open()) == contents));
  std::string bad = contents;
  bad[12345] ^= 1;
  write_file(folder / "a", bad);
  CHECK_CONTAINS(message_of<DamagedError>([&] { read_all(open()); }), "bytes 12288 to 16384");
  write_file(folder / "a", contents + "more");
  CHECK_CONTAINS(message_of<DamagedError>([&] { open(); }), "remove " + (folder / "a.xxh3").string());
  write_file(folder / "a", contents);
  const std::string right = read_file(folder / "a.xxh3");
  for (std::size_t at = 0; at < right.size(); ++at) {
    std::string wrong = right;
    wrong[at] ^= 1;
    write_file(folder / "a.xxh3", wrong);
    CHECK_CONTAINS(message_of<DamagedError>([&] { open(); }), "a.xxh3 is damaged");
  }
  for (std::size_t size = 0; size < right.size(); ++size) {
    write_file(folder / "a.xxh3", right.substr(0, size));
    CHECK_CONTAINS(message_of<DamagedError>([&] { open(); }), "a.xxh3 is damaged");
  }
}
