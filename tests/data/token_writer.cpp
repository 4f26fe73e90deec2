// Writing token files while tokens arrive: the same bytes for any pieces, a numbered file after a full one, and a later writer
// resumes after a killed one.
#include <boost/test/unit_test.hpp>

#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.hpp"
#include "data/samples.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"
#include "support/tokens.hpp"

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
    const auto writer = make_writer("llm.c", folder / "pieces.bin", vocab_size);
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
  const auto writer = make_writer("llm.c", folder / "t.bin", 256, nullptr, 10);
  writer->add(std::span(tokens).first(3));
  writer->add(std::span(tokens).subspan(3));
  const auto files = writer->finish();
  BOOST_TEST_REQUIRE(files.size() == 3u);
  BOOST_TEST(files[2].path == folder / "t_000003.bin");
  BOOST_TEST(files[2].tokens == 5u);
  BOOST_TEST(tokens_of(folder / "t_000001.bin").size() == 10u);
  BOOST_TEST(tokens_of(folder / "t_000003.bin") == (std::vector<std::uint32_t>{20, 21, 22, 23, 24}),
             boost::test_tools::per_element());
  BOOST_TEST(files_in(folder) == 3u);
  // A full file without a next one keeps its name.
  const auto full = make_writer("llm.c", folder / "u.bin", 256, nullptr, 10);
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
        const auto killed = make_writer("llm.c", folder / "t.bin", 256, nullptr, shard);
        killed->add(std::span(tokens).first(kept));
        killed->sync();
        state = nlohmann::json::parse(killed->state().dump());
        killed->add(std::vector<TokenId>(25, 77));  // these are lost
      }
      const auto writer = make_writer("llm.c", folder / "t.bin", 256, state, shard);
      writer->add(std::span(tokens).subspan(kept));
      writer->finish();
      const auto once = make_writer("llm.c", folder / "once.bin", 256, nullptr, shard);
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

/// A later writer does not resume after damaged tokens.
BOOST_AUTO_TEST_CASE(what_was_damaged_is_not_gone_on_with) {
  const TemporaryFolder folder;
  const auto damaged = [&](const char* name, std::size_t at, const auto& make) {
    nlohmann::json state;
    {
      const auto writer = make(nlohmann::json());
      writer->add(counting(50));
      writer->end_document();
      writer->add(counting(7));
      writer->sync();
      state = nlohmann::json::parse(writer->state().dump());
    }
    std::string bytes = read_file(folder / name);
    bytes[at] ^= 1;
    write_file(folder / name, bytes);
    const std::string message = message_of<DamagedError>([&] { make(state); });
    bytes[at] ^= 1;
    write_file(folder / name, bytes);
    make(state)->finish();
    return message;
  };
  const auto llmc = [&](const nlohmann::json& state) { return make_writer("llm.c", folder / "t.bin", 256, state, 20); };
  const auto indexed = [&](const nlohmann::json& state) { return make_writer("megatron", folder / "i.bin", 256, state); };
  const std::string of_file = "has changed since it was written", of_header = "have changed since they were written";
  for (const auto& [name, at, message] : {std::tuple("t.bin.fsdp-tmp-1", 1024 + 7, of_file),
                                          {"t.bin.fsdp-tmp-2", 8, of_header},
                                          {"t.bin.fsdp-tmp-3", 1024 + 33, of_file}})
    CHECK_CONTAINS(damaged(name, static_cast<std::size_t>(at), llmc), message);
  for (const auto& [name, at] : {std::pair("i.bin.fsdp-tmp-1", 3), {"i.idx.fsdp-tmp-1", 34}})
    CHECK_CONTAINS(damaged(name, static_cast<std::size_t>(at), indexed), "has changed since it was written");
}

BOOST_AUTO_TEST_CASE(what_is_not_saved_is_removed_and_what_does_not_fit_is_refused) {
  const TemporaryFolder folder;
  { make_writer("llm.c", folder / "t.bin", 256, nullptr, 2)->add(counting(9)); }
  BOOST_TEST(files_in(folder) == 0u);

  nlohmann::json state;
  {
    const auto writer = make_writer("llm.c", folder / "t.bin", 256);
    writer->add(counting(9));
    // Only one process may write it.
    CHECK_CONTAINS(message_of([&] { make_writer("llm.c", folder / "t.bin", 256); }), "is being written by another process");
    writer->sync();
    state = writer->state();
  }
  const auto complaint = [&](std::size_t vocab_size, std::uint64_t shard, const nlohmann::json& from) {
    return message_of<DamagedError>([&] { make_writer("llm.c", folder / "t.bin", vocab_size, from, shard); });
  };
  CHECK_CONTAINS(complaint(70000, most_llmc_tokens, state), "have changed since they were written");
  CHECK_CONTAINS(complaint(256, 100, state), "have changed since they were written");
  CHECK_CONTAINS(complaint(256, most_llmc_tokens, nlohmann::json::object()), "has no \"full_shards\"");
  write_file(folder / "t.bin.fsdp-tmp-1", read_file(folder / "t.bin.fsdp-tmp-1").replace(1030, 1, 1, '\x55'));
  CHECK_CONTAINS(complaint(256, most_llmc_tokens, state), "has changed since it was written");
  std::filesystem::resize_file(folder / "t.bin.fsdp-tmp-1", 1030);
  CHECK_CONTAINS(complaint(256, most_llmc_tokens, state), "has changed since it was written");
  { make_writer("llm.c", folder / "t.bin", 256)->finish(); }  // a new start replaces them
  BOOST_TEST(files_in(folder) == 1u);
  BOOST_TEST(tokens_of(folder / "t.bin").size() == 0u);
}

namespace {

/// Writes documents of these lengths, in pieces independent of the documents.
std::vector<std::uint32_t> write_documents(TokenWriter& writer, const std::vector<std::size_t>& lengths,
                                           std::size_t vocab_size) {
  std::vector<std::uint32_t> all;
  for (const std::size_t length : lengths) {
    std::vector<TokenId> tokens(length);
    for (TokenId& token : tokens)
      token = static_cast<TokenId>((7919 * all.size()) % vocab_size), all.push_back(static_cast<std::uint32_t>(token));
    writer.add(std::span(tokens).first(length / 3));
    writer.add(std::span(tokens).subspan(length / 3));
    writer.end_document();
  }
  return all;
}

const std::vector<std::size_t> lengths = {5, 0, 200'000, 1, 1, 77'777};
const std::vector<std::uint64_t> starts = {0, 5, 200'005, 200'006, 200'007};

}  // namespace

BOOST_AUTO_TEST_CASE(data_sets_of_megatron) {
  const TemporaryFolder folder;
  for (const std::size_t vocab_size : {300, 65'499, 65'500, 128'256}) {
    const auto writer = make_writer("megatron", folder / "d.bin", vocab_size);
    const auto expected = write_documents(*writer, lengths, vocab_size);
    BOOST_TEST((std::filesystem::exists(folder / "d.bin") == (vocab_size != 300)));  // before it is complete there is only the
                                                                                     // file of the previous case
    const auto files = writer->finish();
    BOOST_TEST_REQUIRE(files.size() == 1u);
    BOOST_TEST(files[0].path == folder / "d.bin");
    BOOST_TEST(files[0].tokens == expected.size());
    const auto tokens = open_token_file(folder / "d");
    BOOST_TEST((all_tokens(*tokens) == expected));
    BOOST_TEST(tokens->largest_possible() == (vocab_size < 65'500 ? 65'535u : 2'147'483'647u));
    BOOST_TEST(tokens->documents() == starts, boost::test_tools::per_element());
    tokens->check(0, 1);
    BOOST_TEST(files_in(folder) == 2u);
  }
  // An unfinished writer does not change existing files.
  { write_documents(*make_writer("megatron", folder / "d", 300), lengths, 300); }
  BOOST_TEST(files_in(folder) == 2u);
  BOOST_TEST(open_token_file(folder / "d")->size() == 277'784u);
}

BOOST_AUTO_TEST_CASE(a_data_set_of_megatron_goes_on_after_a_kill) {
  const TemporaryFolder folder;
  {
    const auto writer = make_writer("megatron", folder / "once", 300);
    write_documents(*writer, {100, 70'000, 3, 9}, 300);
    writer->finish();
  }
  std::vector<TokenId> tokens;
  for (const std::uint32_t token : tokens_of(folder / "once")) tokens.push_back(static_cast<TokenId>(token));
  nlohmann::json state;
  {
    const auto writer = make_writer("megatron", folder / "d", 300);
    writer->add(std::span(tokens).first(100));
    writer->end_document();
    writer->add(std::span(tokens).subspan(100, 40'000));  // within a document
    writer->sync();
    state = writer->state();
    writer->add(tokens);  // lost
    writer->end_document();
  }
  BOOST_TEST(files_in(folder) == 4u);
  {
    const auto writer = make_writer("megatron", folder / "d", 300, state);
    writer->add(std::span(tokens).subspan(40'100, 30'000));
    writer->end_document();
    writer->add(std::span(tokens).subspan(70'100, 3));
    writer->end_document();
    writer->add(std::span(tokens).subspan(70'103));
    writer->finish();
  }
  for (const char* extension : {".bin", ".idx"}) {
    const bool same =
        read_file(folder / (std::string("d") + extension)) == read_file(folder / (std::string("once") + extension));
    BOOST_TEST(same);
  }
  BOOST_TEST(files_in(folder) == 4u);
  // The state does not match the files.
  CHECK_CONTAINS(message_of([&] { make_writer("megatron", folder / "d", 300, state); }),
                 "d.bin.fsdp-tmp-1 has changed since it was written");
  write_file(folder / "d.bin.fsdp-tmp-1", "few");
  write_file(folder / "d.idx.fsdp-tmp-1", "few");
  CHECK_CONTAINS(message_of([&] { make_writer("megatron", folder / "d", 300, state); }),
                 "has changed since it was written; start anew");
  CHECK_CONTAINS(message_of([&] { make_writer("megatron", folder / "d", 70'000, state); }),
                 "with tokens of another size; start anew");
}

BOOST_AUTO_TEST_CASE(hdf5_files) {
  const TemporaryFolder folder;
  for (const std::size_t vocab_size : {300, 65'536, 65'537}) {
    const auto writer = make_writer("hdf5", folder / "d.h5", vocab_size);
    const auto expected = write_documents(*writer, lengths, vocab_size);
    writer->sync();
    BOOST_TEST(writer->state().is_null());
    writer->finish();
    const auto tokens = open_token_file(folder / "d.h5");
    BOOST_TEST((all_tokens(*tokens) == expected));
    BOOST_TEST(tokens->largest_possible() == (vocab_size <= 65'536 ? 65'535u : 4'294'967'295u));
    BOOST_TEST(tokens->has_documents());
    BOOST_TEST(tokens->documents() == starts, boost::test_tools::per_element());
    BOOST_TEST(files_in(folder) == 1u);
  }
  { write_documents(*make_writer("hdf5", folder / "d.h5", 300), lengths, 300); }
  BOOST_TEST(files_in(folder) == 1u);
  const auto writer = make_writer("hdf5", folder / "e.h5", 300);
  writer->add(std::vector<TokenId>{1, 2, 3});
  writer->finish();
  BOOST_TEST(!open_token_file(folder / "e.h5")->has_documents());
  BOOST_TEST(!open_token_file(folder / "e.h5")->mask());
  {
    const auto with_mask = make_writer("hdf5", folder / "m.h5", 300);
    const auto mask = with_mask->make_mask_writer();
    for (TokenId i = 0; i < 50'000; ++i) {
      with_mask->add(std::vector<TokenId>{i % 300, 7});
      mask->add(std::vector<TokenId>{i % 3 == 0 ? 1 : 0, 1});
    }
    mask->finish();
    with_mask->finish();
  }
  const auto found = all_tokens(*open_token_file(folder / "m.h5")->mask());
  BOOST_TEST_REQUIRE(found.size() == 100'000u);
  for (std::size_t i = 0; i < found.size(); ++i) BOOST_TEST_REQUIRE(found[i] == (i % 2 == 1 || i % 6 == 0 ? 1u : 0u));
  CHECK_CONTAINS(message_of([&] { make_writer("hdf5", folder / "no/such.h5", 300); }), "No such file");
  CHECK_CONTAINS(message_of([&] { make_writer("megatron", folder / "no/such", 300); }), "No such file");
}
