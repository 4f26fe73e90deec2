// Token files: written tokens can be read back, and each kind of error in a file has its own message.
#include <boost/test/unit_test.hpp>

#include <cstring>
#include <numeric>
#include <vector>

#include "data/samples.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"
#include "support/tokens.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

std::vector<std::uint16_t> counting(std::size_t n) {
  std::vector<std::uint16_t> tokens(n);
  std::iota(tokens.begin(), tokens.end(), std::uint16_t{0});
  return tokens;
}

std::string with_header(std::int32_t a, std::int32_t b, std::int32_t c, std::size_t token_bytes) {
  std::string bytes(1024 + token_bytes, '\0');
  const std::int32_t header[] = {a, b, c};
  std::memcpy(bytes.data(), header, sizeof(header));
  return bytes;
}

Samples samples_of(const std::filesystem::path& path, std::size_t T) { return Samples(open_token_file(path), {T}); }

}  // namespace

BOOST_AUTO_TEST_CASE(what_is_written_reads_back) {
  const TemporaryFolder folder;
  const auto path = folder / "t.bin";
  write_token_file(path, counting(24));
  // The bytes are llm.c's: 256 int32, then uint16.
  const std::string bytes = read_file(path);
  BOOST_TEST(bytes == with_header(20240520, 1, 24, 48).replace(1024, 48, bytes.substr(1024)));
  BOOST_TEST(bytes.substr(1024 + 2 * 23, 2) == std::string("\x17\0", 2));

  const Samples file = samples_of(path, 7);
  BOOST_TEST(file.tokens().size() == 24u);
  BOOST_TEST(file.tokens().largest_possible() == 65535u);
  BOOST_TEST(!doubt_type(file.tokens(), 65'536));
  CHECK_CONTAINS(doubt_type(file.tokens(), 65'537).value_or(""),
                 "stores tokens in 16 bits, up to 65535, and the model has 65537");
  BOOST_TEST(file.count() == 4u);  // 23 targets
  BOOST_TEST(samples_of(path, 23).count() == 1u);
  BOOST_TEST(samples_of(path, 24).count() == 1u);
  std::vector<std::int32_t> inputs(7), targets(7);
  file.read(2, 24, inputs.data(), targets.data());
  for (int t = 0; t < 7; ++t) {
    BOOST_TEST(inputs[t] == 14 + t);
    BOOST_TEST(targets[t] == 15 + t);
  }
}

BOOST_AUTO_TEST_CASE(the_end_of_the_file_is_padded_with_targets_that_do_not_count) {
  const TemporaryFolder folder;
  write_token_file(folder / "t.bin", counting(24));
  const Samples file = samples_of(folder / "t.bin", 7);
  std::vector<std::int32_t> inputs(7), targets(7);
  file.read(3, 24, inputs.data(), targets.data());  // tokens 21, 22, 23: two targets
  BOOST_TEST(inputs == (std::vector<std::int32_t>{21, 22, 0, 0, 0, 0, 0}), boost::test_tools::per_element());
  BOOST_TEST(targets == (std::vector<std::int32_t>{22, 23, -1, -1, -1, -1, -1}), boost::test_tools::per_element());
  file.read(4, 24, inputs.data(), targets.data());
  BOOST_TEST(targets == std::vector<std::int32_t>(7, -1), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_token_outside_the_vocabulary_is_named_with_its_position) {
  const TemporaryFolder folder;
  write_token_file(folder / "t.bin", counting(50));
  const Samples file = samples_of(folder / "t.bin", 16);
  std::vector<std::int32_t> inputs(16), targets(16);
  file.read(1, 33, inputs.data(), targets.data());  // tokens 16 .. 32
  const auto message = message_of([&] { file.read(1, 32, inputs.data(), targets.data()); });
  CHECK_CONTAINS(message, "token 32 at position 32 of '");
  CHECK_CONTAINS(message, "vocabulary of 32");
}

BOOST_AUTO_TEST_CASE(tokens_of_32_bits) {
  const TemporaryFolder folder;
  const auto path = folder / "t.bin";
  std::vector<std::uint32_t> tokens(10'000);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint32_t>(13 * i);  // up to 129,987
  write_token_file(path, tokens);
  const std::string bytes = read_file(path);
  BOOST_TEST(bytes.substr(0, 1024) == with_header(20240801, 7, 10'000, 0));
  BOOST_TEST(bytes.size() == 1024 + 4 * tokens.size());
  BOOST_TEST(std::memcmp(bytes.data() + 1024, tokens.data(), 4 * tokens.size()) == 0);

  constexpr std::size_t T = 5'000;  // longer than one read
  const Samples file = samples_of(path, T);
  BOOST_TEST(file.tokens().size() == tokens.size());
  std::vector<std::int32_t> inputs(T), targets(T);
  file.read(1, 130'000, inputs.data(), targets.data());
  for (std::size_t t = 0; t < T; ++t) {
    const std::size_t i = T + t;
    if (inputs[t] != (i + 1 < tokens.size() ? static_cast<int>(13 * i) : 0)) BOOST_ERROR("input " << t);
    if (targets[t] != (i + 1 < tokens.size() ? static_cast<int>(13 * (i + 1)) : -1)) BOOST_ERROR("target " << t);
  }
  BOOST_TEST(check_vocabulary(file.tokens(), 129'988, 0, 1).largest == 129'987u);
  CHECK_CONTAINS(message_of([&] { check_vocabulary(file.tokens(), 128'000, 2, 3); }), "token 129987 at position 9999 of '");
  // The checksum does not depend on the number of parts, and changes with any token or its place.
  const auto sum = [&](std::size_t parts) {
    std::uint64_t all = 0;
    for (std::size_t part = 0; part < parts; ++part) all += check_vocabulary(*open_token_file(path), 130'000, part, parts).sum;
    return all;
  };
  const std::uint64_t before = sum(1);
  BOOST_TEST(sum(3) == before);
  std::swap(tokens[4'321], tokens[4'322]);
  write_token_file(path, tokens);
  BOOST_TEST(sum(2) != before);
  // A large token is not read as a negative number.
  write_file(path, bytes.substr(0, 1024 + 4 * 9'999) + "\xff\xff\xff\xff");
  CHECK_CONTAINS(message_of([&] { check_vocabulary(*open_token_file(path), 130'000, 0, 1); }),
                 "the number at position 9999 of '");
  write_file(path, with_header(20240801, 1, 10, 40));
  CHECK_CONTAINS(message_of([&] { open_token_file(path); }), "version 1, but only version 7 with tokens of 32 bits");
  write_file(path, with_header(20240801, 7, 10, 39));
  CHECK_CONTAINS(message_of([&] { open_token_file(path); }), "truncated: its header has 10 tokens, but only 9 are stored");
}

BOOST_AUTO_TEST_CASE(files_that_cannot_be_used) {
  const TemporaryFolder folder;
  const auto path = folder / "bad.bin";
  const auto error = [&](const std::string& bytes) {
    write_file(path, bytes);
    const auto message = message_of([&] { open_token_file(path); });
    CHECK_CONTAINS(message, path.string());
    return message;
  };
  CHECK_CONTAINS(error(""), "it is empty");
  CHECK_CONTAINS(error(std::string(1023, 'x')), "it looks like text");
  CHECK_CONTAINS(error(with_header(20240520, 1, 10, 0).substr(0, 1023)), "it has 1023 bytes, fewer than its header of 1024");
  CHECK_CONTAINS(error(std::string(4000, 'a')), "it starts with 1633771873");
  CHECK_CONTAINS(error(std::string(4000, 'a')), "it looks like text); make one with fsdp-tokenize");
  CHECK_CONTAINS(error("\x93NUMPY" + std::string(4000, '\1')), "it is an array of numpy); write its tokens");
  CHECK_CONTAINS(error("\x1f\x8b\x08" + std::string(40, '\1')), "(it is compressed by gzip); only text is read so");
  CHECK_CONTAINS(error(std::string(4000, '\1')), "it starts with 16843009");
  CHECK_CONTAINS(error(with_header(20240520, 7, 10, 40)), "version 7");
  CHECK_CONTAINS(error(with_header(20240520, 1, 10, 18)), "truncated: its header has 10 tokens, but only 9 are stored");
  CHECK_CONTAINS(error(with_header(20240520, 1, 10, 19)), "truncated");
  CHECK_CONTAINS(error(with_header(20240520, 1, -1, 20)), "truncated");
  CHECK_CONTAINS(error(with_header(20240520, 1, 10, 23)), "3 bytes follow");
  CHECK_CONTAINS(error(with_header(20240520, 1, 10, 20).replace(1020, 1, 1, '\7')),
                 "number 256 of its header is 7, but all after the first three must be 0");
  CHECK_CONTAINS(message_of([&] { open_token_file(folder / "none.bin"); }), "No such file");
  CHECK_CONTAINS(message_of([&] { open_token_file(folder.path()); }), "it is a folder");
}

BOOST_AUTO_TEST_CASE(a_failed_write_leaves_nothing) {
  const TemporaryFolder folder;
  CHECK_CONTAINS(message_of([&] { write_token_file(folder / "no/such/folder.bin", counting(3)); }),
                 "folder.bin' (No such file");
  std::filesystem::create_directory(folder / "taken");
  write_file(folder / "taken/x", "");
  CHECK_CONTAINS(message_of([&] { write_token_file(folder / "taken", counting(3)); }), "taken' (it is a folder)");
  BOOST_TEST(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}
