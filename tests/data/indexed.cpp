// Data sets in two files, as Megatron and fairseq write them, byte by byte, and all kinds of wrong indices.
#include <boost/test/unit_test.hpp>

#include <numeric>
#include <string>
#include <vector>

#include "data/samples.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"
#include "support/tokens.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

template <class T>
void put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// The contents of a data set's index, which tests may change before it is written.
struct Index {
  std::uint64_t version = 1;
  unsigned char type = 8;  // uint16
  std::vector<std::int32_t> lengths = {3, 0, 5, 2};
  std::vector<std::int64_t> starts = {0, 6, 6, 16};
  std::vector<std::int64_t> documents = {0, 2, 3, 4};  // only in Megatron's index
  bool has_modes = false;
  char last_mode = 0;

  std::string fairseq() const {
    std::string bytes = beginning();
    put<std::uint64_t>(bytes, lengths.size());
    return bytes + arrays();
  }
  std::string megatron() const {
    std::string bytes = beginning();
    put<std::uint64_t>(bytes, lengths.size());
    put<std::uint64_t>(bytes, documents.size());
    bytes += arrays();
    for (const auto document : documents) put(bytes, document);
    return has_modes ? bytes + std::string(lengths.size() - 1, '\0') + last_mode : bytes;
  }

 private:
  std::string beginning() const {
    std::string bytes("MMIDIDX\0\0", 9);
    put(bytes, version);
    return bytes + static_cast<char>(type);
  }
  std::string arrays() const {
    std::string bytes;
    for (const auto length : lengths) put(bytes, length);
    for (const auto start : starts) put(bytes, start);
    return bytes;
  }
};

template <class T>
std::string integers(const std::vector<std::uint32_t>& values) {
  std::string bytes;
  for (const auto value : values) put(bytes, static_cast<T>(value));
  return bytes;
}

struct Pair {
  TemporaryFolder folder;
  Pair() { write(Index().megatron()); }
  void write(const std::string& index, const std::string& data = integers<std::uint16_t>(values)) {
    write_file(folder / "d.idx", index);
    write_file(folder / "d.bin", data);
  }
  std::string error() {
    return message_of([&] {
      const auto tokens = open_token_file(folder / "d.bin");
      for (std::size_t part = 0; part < 3; ++part) tokens->check(part, 3);
    });
  }
  inline static const std::vector<std::uint32_t> values = {7, 8, 9, 1, 2, 3, 4, 5, 60000, 2};
};

}  // namespace

BOOST_AUTO_TEST_CASE(both_programs_forms_by_any_of_their_names) {
  Pair pair;
  Index with_modes;
  with_modes.has_modes = true;
  for (const std::string& index : {Index().megatron(), Index().fairseq(), with_modes.megatron()}) {
    pair.write(index);
    for (const char* name : {"d.bin", "d.idx", "d"}) {
      const auto tokens = open_token_file(pair.folder / name);
      BOOST_TEST(all_tokens(*tokens) == Pair::values, boost::test_tools::per_element());
      BOOST_TEST(tokens->largest_possible() == 65535u);
      BOOST_TEST(tokens->has_documents());
      for (std::size_t part = 0; part < 7; ++part) tokens->check(part, 7);
    }
  }
  // Megatron's second document is sequence 2; fairseq's items are documents, except those without tokens.
  pair.write(Index().megatron());
  BOOST_TEST(open_token_file(pair.folder / "d")->documents() == (std::vector<std::uint64_t>{0, 3, 8}),
             boost::test_tools::per_element());
  pair.write(Index().fairseq());
  BOOST_TEST(open_token_file(pair.folder / "d")->documents() == (std::vector<std::uint64_t>{0, 3, 8}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(every_type_of_integers) {
  Pair pair;
  const std::vector<std::uint32_t> small = {7, 8, 9, 1, 2, 3, 4, 5, 100, 2};
  const auto check = [&](unsigned char type, const std::string& data, std::uint64_t largest) {
    Index index;
    index.type = type;
    const auto width = static_cast<std::int64_t>(data.size() / small.size());
    index.starts = {0, 3 * width, 3 * width, 8 * width};
    pair.write(index.fairseq(), data);
    const auto tokens = open_token_file(pair.folder / "d");
    BOOST_TEST(all_tokens(*tokens) == small, boost::test_tools::per_element());
    BOOST_TEST(tokens->largest_possible() == largest);
    tokens->check(0, 1);
  };
  check(1, integers<std::uint8_t>(small), 255);
  check(2, integers<std::int8_t>(small), 127);
  check(3, integers<std::int16_t>(small), 32767);
  check(4, integers<std::int32_t>(small), 2147483647);
  check(5, integers<std::int64_t>(small), 4294967295);
  check(8, integers<std::uint16_t>(small), 65535);
  check(9, integers<std::uint32_t>(small), 4294967295);
  check(10, integers<std::uint64_t>(small), 4294967295);
  for (const unsigned char type : {0, 6, 7, 11}) {
    Index index;
    index.type = type;
    pair.write(index.fairseq());
    CHECK_CONTAINS(pair.error(), "its tokens are of type");
  }
}

BOOST_AUTO_TEST_CASE(what_is_negative_or_too_large_is_no_token) {
  Pair pair;
  Index index;
  index.type = 5;
  index.lengths = {3};
  index.starts = {0};
  std::string data;
  for (const std::int64_t value : {std::int64_t{5}, std::int64_t{-1}, std::int64_t{1} << 40}) put(data, value);
  pair.write(index.fairseq(), data);
  BOOST_TEST(tokens_of(pair.folder / "d") == (std::vector<std::uint32_t>{5, no_token, no_token}),
             boost::test_tools::per_element());
  CHECK_CONTAINS(message_of([&] { check_vocabulary(*open_token_file(pair.folder / "d"), 100, 0, 1); }),
                 "the number at position 1 of '");
}

BOOST_AUTO_TEST_CASE(an_index_that_lies) {
  Pair pair;
  const auto with = [&](auto change) {
    Index index;
    change(index);
    pair.write(index.megatron());
    return pair.error();
  };
  CHECK_CONTAINS(with([](Index& i) { i.version = 2; }), "it is of version 2, but only version 1 is read");
  CHECK_CONTAINS(with([](Index& i) { i.lengths.back() = 3; }),
                 "(the index has 11 tokens of 16 bits, which are 22 bytes, but the file has 20");
  CHECK_CONTAINS(with([](Index& i) { i.lengths.back() = 1; }),
                 "(the index has 9 tokens of 16 bits, which are 18 bytes, but the");
  CHECK_CONTAINS(with([](Index& i) { i.lengths.back() = -1; }), "its sequence 3 has -1 tokens");
  CHECK_CONTAINS(with([](Index& i) { i.starts.back() = 17; }), "its last sequence begins within a token");
  CHECK_CONTAINS(with([](Index& i) { i.lengths[0] = 2; }),
                 "its sequence 1 of 0 tokens begins at byte 6, but the sequence before it ends");
  CHECK_CONTAINS(with([](Index& i) { i.starts[2] = 8; }),
                 "its sequence 2 of 5 tokens begins at byte 8, but the sequence before it ends at 6");
  CHECK_CONTAINS(with([](Index& i) { i.starts[0] = 2; }), "its sequence 0");
  CHECK_CONTAINS(with([](Index& i) { i.lengths[1] = -2; }), "its sequence 1");
  CHECK_CONTAINS(with([](Index& i) { i.documents.back() = 3; }), "its document 3 begins with sequence 3 of 4");
  CHECK_CONTAINS(with([](Index& i) { i.documents[1] = 7; }), "its document 1 begins with sequence 7 of 4");
  CHECK_CONTAINS(with([](Index& i) { i.documents[0] = 1; }), "its document 0 begins with sequence 1");
  CHECK_CONTAINS(with([](Index& i) { i.documents.clear(); }), "its list of documents is empty");
  CHECK_CONTAINS(with([](Index& i) { i.has_modes = true, i.last_mode = 1; }),
                 "it has a sequence of mode 1, but only mode 0 (text) is read");
  pair.write(Index().megatron().substr(0, 80));
  CHECK_CONTAINS(pair.error(), "(is the file cut?)");
  pair.write(Index().megatron().substr(0, 20));
  CHECK_CONTAINS(pair.error(), "fewer than its header");
  pair.write(Index().megatron(), integers<std::uint16_t>(Pair::values).substr(0, 19));
  CHECK_CONTAINS(pair.error(), "does not belong to");
  pair.write(std::string(200, 'x'));
  CHECK_CONTAINS(pair.error(), "it is not the index of a memory-mapped data set");
  std::filesystem::remove(pair.folder / "d.idx");
  CHECK_CONTAINS(pair.error(), "no index of Megatron or fairseq is next to it");
  pair.write(Index().megatron());
  std::filesystem::remove(pair.folder / "d.bin");
  CHECK_CONTAINS(message_of([&] { open_token_file(pair.folder / "d.idx"); }), "d.bin cannot be opened (No such file");
}

BOOST_AUTO_TEST_CASE(sequences_at_documents) {
  Pair pair;
  const auto read = [&](BreakMode mode, std::size_t T, std::optional<std::size_t> end = {}) {
    const Samples samples(open_token_file(pair.folder / "d"), {T, mode, end});
    std::vector<std::vector<std::int32_t>> all;
    std::vector<std::int32_t> inputs(T), targets(T);
    std::uint64_t counted = 0;
    for (std::uint64_t k = 0; k < samples.count(); ++k) {
      samples.read(k, 65536, inputs.data(), targets.data());
      std::vector<std::int32_t> tokens(1, inputs[0]);
      for (const auto target : targets)
        if (target >= 0) tokens.push_back(target);
      counted += tokens.size() - 1;
      BOOST_TEST(tokens.size() - 1 == samples.targets_of(k));
      all.push_back(tokens);
    }
    BOOST_TEST(counted == samples.targets());
    samples.read(samples.count(), 65536, inputs.data(), targets.data());
    BOOST_TEST(targets == std::vector<std::int32_t>(T, -1), boost::test_tools::per_element());
    return all;
  };
  using Sequences = std::vector<std::vector<std::int32_t>>;
  // Documents: 7 8 9 | 1 2 3 4 5 | 60000 2
  BOOST_TEST((read(BreakMode::eos, 10) == Sequences{{7, 8, 9}, {1, 2, 3, 4, 5}, {60000, 2}}));
  BOOST_TEST((read(BreakMode::eos, 3) == Sequences{{7, 8, 9}, {1, 2, 3, 4}, {4, 5}, {60000, 2}}));
  BOOST_TEST((read(BreakMode::complete, 10) == Sequences{{7, 8, 9, 1, 2, 3, 4, 5, 60000, 2}}));
  BOOST_TEST((read(BreakMode::complete, 7) == Sequences{{7, 8, 9, 1, 2, 3, 4, 5}, {60000, 2}}));
  BOOST_TEST((read(BreakMode::complete, 4) == Sequences{{7, 8, 9}, {1, 2, 3, 4, 5}, {60000, 2}}));
  BOOST_TEST((read(BreakMode::complete, 3) == Sequences{{7, 8, 9}, {1, 2, 3, 4}, {4, 5}, {60000, 2}}));
  // A token says where documents end: 7 8 9 1 2 | 3 4 5 60000 2
  BOOST_TEST((read(BreakMode::eos, 10, 2) == Sequences{{7, 8, 9, 1, 2}, {3, 4, 5, 60000, 2}}));
}
