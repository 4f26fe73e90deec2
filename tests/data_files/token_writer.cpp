// Token files that are written as the tokens come: the same bytes whatever the pieces, numbered files where one is full, and a
// later writer goes on where one was killed.
#define BOOST_TEST_MODULE data.token_writer
#include <boost/test/unit_test.hpp>

#include <numeric>
#include <vector>

#include "base/error.hpp"
#include "data/token_file.hpp"
#include "data/token_writer.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

std::vector<TokenId> counting(std::size_t n) {
  std::vector<TokenId> tokens(n);
  for (std::size_t i = 0; i < n; ++i) tokens[i] = static_cast<TokenId>(i % 60000);
  return tokens;
}

std::size_t files_in(const TemporaryFolder& folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder.path()), {}));
}

}  // namespace

BOOST_AUTO_TEST_CASE(pieces_do_not_matter) {
  const TemporaryFolder folder;
  const auto tokens = counting(3'000'000);
  write_token_file(folder / "once.bin", std::vector<std::uint16_t>(tokens.begin(), tokens.end()));
  write_token_file(folder / "wide.bin", std::vector<std::uint32_t>(tokens.begin(), tokens.end()));
  for (const std::size_t vocab_size : {std::size_t{65536}, std::size_t{65537}}) {
    const auto writer = make_llmc_writer(folder / "pieces.bin", vocab_size);
    for (std::size_t begin = 0, n = 1; begin < tokens.size(); begin += n, n = std::min(3 * n + 1, tokens.size() - begin))
      writer->add(std::span(tokens).subspan(begin, n));
    BOOST_TEST(!std::filesystem::exists(folder / "pieces.bin"));  // before it is whole
    const auto files = writer->finish();
    BOOST_TEST_REQUIRE(files.size() == 1u);
    BOOST_TEST(files[0].path == folder / "pieces.bin");
    BOOST_TEST(files[0].tokens == tokens.size());
    const bool same = read_file(folder / "pieces.bin") == read_file(folder / (vocab_size == 65536 ? "once.bin" : "wide.bin"));
    BOOST_TEST(same);
    std::filesystem::remove(folder / "pieces.bin");
  }
  BOOST_TEST(files_in(folder) == 2u);
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_into_a_file_goes_into_numbered_ones) {
  const TemporaryFolder folder;
  const auto tokens = counting(25);
  const auto writer = make_llmc_writer(folder / "t.bin", 256, 10);
  writer->add(std::span(tokens).first(3));
  writer->add(std::span(tokens).subspan(3));
  const auto files = writer->finish();
  BOOST_TEST_REQUIRE(files.size() == 3u);
  BOOST_TEST(files[2].path == folder / "t_000003.bin");
  BOOST_TEST(files[2].tokens == 5u);
  BOOST_TEST(TokenFile(folder / "t_000001.bin").tokens() == 10u);
  std::vector<std::int32_t> inputs(4), targets(4);
  TokenFile(folder / "t_000003.bin").read(0, 4, 256, inputs.data(), targets.data());
  BOOST_TEST(inputs[0] == 20);
  BOOST_TEST(targets[3] == 24);
  BOOST_TEST(files_in(folder) == 3u);
  // A full file that nothing follows keeps its name.
  const auto full = make_llmc_writer(folder / "u.bin", 256, 10);
  full->add(std::span(tokens).first(10));
  BOOST_TEST(full->finish().at(0).path == folder / "u.bin");
}

BOOST_AUTO_TEST_CASE(a_later_writer_goes_on) {
  const TemporaryFolder folder;
  const auto tokens = counting(100);
  for (const std::size_t shard : {std::size_t{1000}, std::size_t{30}, std::size_t{20}})
    for (const std::size_t kept : {std::size_t{0}, std::size_t{1}, std::size_t{40}, std::size_t{60}, std::size_t{100}}) {
      nlohmann::json state;
      {
        const auto killed = make_llmc_writer(folder / "t.bin", 256, shard);
        killed->add(std::span(tokens).first(kept));
        state = nlohmann::json::parse(killed->save().dump());
        killed->add(std::vector<TokenId>(25, 77));  // is forgotten
      }
      const auto writer = make_llmc_writer(folder / "t.bin", 256, shard, state);
      writer->add(std::span(tokens).subspan(kept));
      writer->finish();
      const auto once = make_llmc_writer(folder / "once.bin", 256, shard);
      once->add(tokens);
      std::size_t i = 0;
      for (const WrittenFile& file : once->finish()) {
        const auto name = "t" + file.path.filename().string().substr(4);
        BOOST_TEST(read_file(folder / name) == read_file(file.path));
        ++i;
      }
      BOOST_TEST(files_in(folder) == 2 * i);
      for (const auto& entry : std::filesystem::directory_iterator(folder.path())) std::filesystem::remove(entry.path());
    }
}

BOOST_AUTO_TEST_CASE(what_is_not_saved_is_removed_and_what_does_not_fit_is_refused) {
  const TemporaryFolder folder;
  { make_llmc_writer(folder / "t.bin", 256, 2)->add(counting(9)); }
  BOOST_TEST(files_in(folder) == 0u);

  nlohmann::json state;
  {
    const auto writer = make_llmc_writer(folder / "t.bin", 256);
    writer->add(counting(9));
    // Only one process may write it.
    CHECK_CONTAINS(message_of([&] { make_llmc_writer(folder / "t.bin", 256); }), "is written by another process just now");
    state = writer->save();
  }
  const auto complaint = [&](std::size_t vocab_size, std::uint64_t shard, const nlohmann::json& from) {
    return message_of<DamagedError>([&] { make_llmc_writer(folder / "t.bin", vocab_size, shard, from); });
  };
  CHECK_CONTAINS(complaint(70000, most_llmc_tokens, state), "are not what was written");
  CHECK_CONTAINS(complaint(256, 100, state), "are not what was written");
  CHECK_CONTAINS(complaint(256, most_llmc_tokens, nlohmann::json::object()), "\"full_shards\" is missing");
  std::filesystem::resize_file(folder / "t.bin.tmp-1", 1030);
  CHECK_CONTAINS(complaint(256, most_llmc_tokens, state), "are not what was written");
  { make_llmc_writer(folder / "t.bin", 256)->finish(); }  // starting anew takes their place
  BOOST_TEST(files_in(folder) == 1u);
  BOOST_TEST(TokenFile(folder / "t.bin").tokens() == 0u);
}
