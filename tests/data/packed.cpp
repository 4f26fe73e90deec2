// Texts that are packed, and rows of Parquet files. tests/golden/files/make.py made the files with other programs.
#include <boost/test/unit_test.hpp>

#include <sys/resource.h>

#include <nlohmann/json.hpp>

#include "data/json_records.hpp"
#include "data/open_data.hpp"
#include "data/text_file.hpp"
#include "data/text_source.hpp"
#include "files/unpack.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

const std::filesystem::path golden = FSDP_TEST_DATA "/files";

std::string text_of(const std::filesystem::path& path, std::size_t bytes = 1 << 20) {
  const TextFile file(path);
  std::string text(bytes, '\0');
  text.resize(file.read(0, text.data(), text.size()));
  return text;
}

std::vector<nlohmann::json> rows_of(const std::string& text) {
  std::vector<nlohmann::json> rows;
  for (std::size_t at = 0, end; at < text.size(); at = end + 1) {
    end = text.find('\n', at);
    rows.push_back(nlohmann::json::parse(text.substr(at, end - at)));
  }
  return rows;
}

/// Writes a new file, because some file systems write a file that is overwritten to the disk at once.
void write_anew(const std::filesystem::path& path, const std::string& bytes) {
  std::filesystem::remove(path);
  write_file(path, bytes);
}

/// The message of the error that `call` throws; empty if it throws none.
template <class Call>
std::string problem_in(const Call& call) {
  try {
    call();
    return "";
  } catch (const UserError& error) {
    return error.what();
  }
}

/// The message for a file, or an empty text if it can be read to its end.
std::string message_of_file(const std::filesystem::path& path) {
  return problem_in([&] { TextFile(path).size(); });
}

bool can_read(const std::filesystem::path& path) {
  return has_zstd ||
         (path.extension() != ".zst" && path.filename() != "polars.parquet" && path.filename() != "pyarrow-zstd-delta.parquet");
}

}  // namespace

BOOST_AUTO_TEST_CASE(packed_texts_are_their_contents) {
  const std::string whole = read_file(golden / "rows.jsonl");
  for (const char* const name : {"rows.jsonl.gz", "rows.jsonl.zst"}) {
    if (!can_read(golden / name)) {
      CHECK_CONTAINS(message_of_file(golden / name), "this build does not read");
      continue;
    }
    const TextFile file(golden / name);
    BOOST_TEST(file.is_packed());
    BOOST_TEST(!file.has_rows());
    BOOST_TEST(text_of(golden / name) == whole);
    BOOST_TEST(file.size() == whole.size());
    // In any order, also over the place where the second member begins
    for (const std::size_t offset : {17000, 4990, 0, 5000, 21990, 30000}) {
      std::string part(23, '\0');
      part.resize(file.read(offset, part.data(), part.size()));
      BOOST_TEST(part == (offset < whole.size() ? whole.substr(offset, 23) : ""));
    }
  }
}

BOOST_AUTO_TEST_CASE(packed_texts_that_are_cut_or_damaged_are_refused) {
  const TemporaryFolder folder;
  for (const char* const name : {"rows.jsonl.gz", "rows.jsonl.zst"}) {
    if (!can_read(golden / name)) continue;
    const std::string bytes = read_file(golden / name), whole = read_file(golden / "rows.jsonl");
    const auto path = folder / name;
    const auto message = [&](const std::string& changed) {
      write_anew(path, changed);
      return message_of_file(path);
    };
    std::size_t kept = 0;
    for (std::size_t size = 4; size < bytes.size(); size += 7) {
      const std::string problem = message(bytes.substr(0, size));
      if (problem.empty()) {
        ++kept;  // the file was cut where its first member ends
        continue;
      }
      CHECK_CONTAINS(problem, "'" + path.string() + "' cannot be unpacked (it was cut, at byte " + std::to_string(size));
    }
    BOOST_TEST(kept <= 1u);
    for (std::size_t at = 4; at < bytes.size(); at += 5) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(changed[at] ^ 0x24);
      write_anew(path, changed);
      std::string text;
      if (problem_in([&] { text = text_of(path); }).empty())
        BOOST_TEST((text == whole), "byte " << at);  // in gzip: time, name, system
    }
    CHECK_CONTAINS(message(bytes + "hello"), "other bytes follow its end, at byte " + std::to_string(bytes.size()) + " of");
    CHECK_CONTAINS(message(bytes + std::string(512, '\0')), "other bytes follow its end");
    CHECK_CONTAINS(message(bytes + bytes.substr(0, 3)), "cannot be unpacked (");
  }
}

BOOST_AUTO_TEST_CASE(a_text_that_changes_while_it_is_read_is_refused) {
  const TemporaryFolder folder;
  write_file(folder / "a.txt", "some words");
  const TextFile file(folder / "a.txt");
  write_file(folder / "a.txt", "other words");
  CHECK_CONTAINS(message_of([&] { file.beginning(4); }), "has changed while it was read");
}

BOOST_AUTO_TEST_CASE(rows_of_parquet_files_are_those_of_json) {
  const std::vector<nlohmann::json> rows = rows_of(read_file(golden / "rows.jsonl"));
  for (const char* const name : {"pyarrow.parquet", "pyarrow-gzip-v2.parquet", "pyarrow-zstd-delta.parquet",
                                 "pyarrow-old.parquet", "datasets.parquet", "polars.parquet", "duckdb.parquet"})
    BOOST_TEST_CONTEXT(name) {
      if (!can_read(golden / name)) {
        CHECK_CONTAINS(message_of_file(golden / name), "which this build does not read");
        continue;
      }
      BOOST_TEST(TextFile(golden / name).has_rows());
      const auto ours = rows_of(text_of(golden / name));
      BOOST_TEST_REQUIRE(ours.size() == rows.size());
      for (std::size_t i = 0; i < rows.size(); ++i) BOOST_TEST((ours[i] == rows[i]), "row " << i << ": " << ours[i] << rows[i]);
    }
  TextSource text({(golden / "pyarrow.parquet").string()});
  BOOST_TEST(text.json_field("") == "text");
  JsonRecords records(text, 0, std::nullopt);
  for (int i = 0; i < 3; ++i) records.next();
  BOOST_TEST(records.place() == "row 3 of '" + (golden / "pyarrow.parquet").string() + "'");
}

BOOST_AUTO_TEST_CASE(damaged_parquet_files_are_refused_or_read) {
  const TemporaryFolder folder;
  const auto path = folder / "small.parquet";
  const auto problem_of = [&](const std::string& bytes) {
    write_anew(path, bytes);
    std::string text;
    const std::string problem = problem_in([&] { text = text_of(path, 4 << 20); });
    if (problem.empty()) return std::string(text.empty() ? "empty" : "");
    CHECK_CONTAINS(problem, "'" + path.string() + "' is a Parquet file that cannot be read (");
    return problem;
  };
  const std::string small = read_file(golden / "small.parquet");
  BOOST_TEST(problem_of(small) == "");
  for (std::size_t size = 4; size < small.size(); ++size) BOOST_TEST(problem_of(small.substr(0, size)) != "", size << " bytes");
  std::size_t refused = 0;
  for (std::size_t at = 4; at < small.size(); ++at)
    for (const int change : {0x01, 0x80, 0xff}) {
      std::string changed = small;
      changed[at] = static_cast<char>(changed[at] ^ change);
      refused += problem_of(changed) != "";
    }
  BOOST_TEST(refused > small.size());
  // A page with a checksum is always found to be damaged.
  std::string checked = read_file(golden / "pyarrow-gzip-v2.parquet");
  checked[checked.size() / 4] ^= 1;
  BOOST_TEST(problem_of(checked) != "");
  CHECK_CONTAINS(message_of_file(golden / "brotli.parquet"), "it is compressed by Brotli, and only");
}

BOOST_AUTO_TEST_CASE(snappy_blocks_are_unpacked_within_their_bounds) {
  const auto unpacked = [](const std::string& packed, std::size_t bytes) {
    std::string out(bytes, '?');
    return unpack_snappy_block(packed, out.data(), bytes) ? out : "no";
  };
  // Nine bytes: a literal of three, and a copy of six from three before, which overlaps itself
  BOOST_TEST(unpacked(std::string("\x09\x08"
                                  "abc"
                                  "\x09\x03",
                                  7),
                      9) == "abcabcabc");
  BOOST_TEST(unpacked(std::string("\x09\x08"
                                  "abc"
                                  "\x16\x03\x00",
                                  8),
                      9) == "abcabcabc");
  BOOST_TEST(unpacked(std::string("\x09\x08"
                                  "abc"
                                  "\x17\x03\x00\x00\x00",
                                  10),
                      9) == "abcabcabc");
  BOOST_TEST(unpacked(std::string("\x03\xf0\x02"
                                  "abc",
                                  6),
                      3) == "abc");
  for (const std::string& wrong : {std::string("\x09\x08"
                                               "abc"
                                               "\x09\x04",
                                               7),
                                   std::string("\x09\x08"
                                               "abc"
                                               "\x09\x00",
                                               7),
                                   std::string("\x09\x08"
                                               "abc"
                                               "\x0d\x03",
                                               7),
                                   std::string("\x09\x24"
                                               "abc",
                                               5),
                                   std::string("\x09\x08"
                                               "abc",
                                               5),
                                   std::string("\x08\x08"
                                               "abc"
                                               "\x09\x03",
                                               7)})
    BOOST_TEST(unpacked(wrong, 9) == "no");
}

BOOST_AUTO_TEST_CASE(thousands_of_files_are_read_in_the_order_of_their_names) {
  const TemporaryFolder folder;
  std::string expected;
  for (int i = 0; i < 3000; ++i) {
    const std::string name = std::to_string(i * 7919 % 3000);
    write_file(folder / (name + ".txt"), "text " + name + "\n");
  }
  rlimit before{};
  BOOST_TEST_REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit few = {200, 200};
  BOOST_TEST_REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
  const auto texts = texts_in((folder / "*.txt").string(), Split::train);
  BOOST_TEST_REQUIRE(texts.size() == 1u);
  BOOST_TEST(texts.front().files.size() == 3000u);
  BOOST_TEST(std::is_sorted(texts.front().files.begin(), texts.front().files.end()));
  TextSource source(texts.front().files);
  BOOST_TEST(source.json_field("") == "");
  std::string all;
  do
    while (source.read(all, 1 << 16) > 0) continue;
  while (source.next());
  for (const std::string& file : texts.front().files) expected += read_file(file);
  BOOST_TEST((all == expected));
}
