// The HDF5 wrappers: written data are read back, virtual datasets show other files, and errors have the failed operation and
// the reason.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>
#include <thread>

#include "h5/h5.hpp"
#include "support/file_size_limit.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"
#include "support/plain_hdf5.hpp"

using namespace fsdp;
using fsdp::test::message_of;

namespace {

std::vector<float> counting(std::size_t n, float from = 0) {
  std::vector<float> values(n);
  std::iota(values.begin(), values.end(), from);
  return values;
}

}  // namespace

BOOST_AUTO_TEST_CASE(datasets_in_groups_are_written_and_read_by_flat_ranges) {
  const test::TemporaryFolder folder;
  const Shape shape{5, 7, 3};
  const auto values = counting(numel(shape));
  {
    h5::File file = h5::File::create(folder / "a.h5");
    {
      h5::Dataset dataset = file.create_dataset("exp_avg/some.name", shape);
      for (const Range range : {Range{0, 1}, Range{1, 38}, Range{38, 60}, Range{60, 105}})
        dataset.write(range, values.data() + range.begin);
      file.create_dataset("other", {4}).write({0, 4}, values.data());
    }
    file.close();
  }
  const h5::File file = h5::File::open(folder / "a.h5");
  BOOST_TEST(file.has("exp_avg/some.name"));
  BOOST_TEST(!file.has("exp_avg/another"));
  BOOST_TEST(!file.has("no/such/group"));
  BOOST_CHECK((file.dataset_names("/") == std::vector<std::string>{"other"}));
  BOOST_CHECK((file.dataset_names("exp_avg") == std::vector<std::string>{"some.name"}));
  const h5::Dataset dataset = file.dataset("exp_avg/some.name");
  BOOST_CHECK(dataset.shape() == shape);
  for (std::size_t begin = 0; begin <= values.size(); begin += 13)
    for (std::size_t end = begin; end <= values.size(); end += 7) {
      std::vector<float> out(end - begin, -1);
      dataset.read({begin, end}, out.data());
      BOOST_TEST(std::equal(out.begin(), out.end(), values.begin() + static_cast<std::ptrdiff_t>(begin)));
    }
}

BOOST_AUTO_TEST_CASE(large_writes_are_whole_wherever_they_begin) {
  const test::TemporaryFolder folder;
  const auto values = counting(2900021);  // 11.6 MB: some goes past the page cache, in pieces, beginnings and ends do not
  std::vector<std::uint64_t> offsets;
  {
    h5::File file = h5::File::create(folder / "a.h5");
    for (const char* name : {"first", "second"}) {
      file.create_dataset(std::string("small before ") + name, {5}).write({0, 5}, values.data());
      h5::Dataset dataset = file.create_dataset(name, {values.size()});
      BOOST_TEST(!dataset.offset().has_value());
      for (const Range range : {Range{0, 7}, Range{7, 1400003}, Range{1400003, 1400010}, Range{1400010, 2900021}})
        dataset.write(range, values.data() + range.begin);
      offsets.push_back(dataset.offset().value());
    }
    file.close();
  }
  const std::string bytes = test::read_file(folder / "a.h5");
  const h5::File file = h5::File::open(folder / "a.h5");
  for (std::size_t i = 0; i < 2; ++i) {
    std::vector<float> found(values.size());
    file.dataset(i == 0 ? "first" : "second").read({0, found.size()}, found.data());
    BOOST_CHECK(found == values);
    BOOST_REQUIRE(offsets[i] + values.size() * sizeof(float) <= bytes.size());
    BOOST_CHECK(std::memcmp(bytes.data() + offsets[i], values.data(), values.size() * sizeof(float)) == 0);
  }
}

// Both ends of a dataset can be read although the chunks between them are damaged.
BOOST_AUTO_TEST_CASE(compressed_datasets_are_read_by_the_chunks_that_a_range_needs) {
  const test::TemporaryFolder folder;
  constexpr std::size_t chunk = 65536, n = 9 * chunk + 77;
  std::vector<float> values(n);
  std::mt19937 random(1);
  for (float& value : values)
    value = std::bit_cast<float>(static_cast<std::uint32_t>(random() % 0x7f000000));  // nothing to deflate
  {
    h5::File file = h5::File::create(folder / "a.h5");
    {
      h5::Dataset dataset = file.create_dataset("x", {n}, h5::Compression::gzip);
      for (const Range range : {Range{0, 1}, Range{1, 70001}, Range{70001, n}})
        dataset.write(range, values.data() + range.begin);
      file.create_dataset("zeros", {n}, h5::Compression::gzip).write({0, n}, std::vector<float>(n).data());
      file.create_dataset("small", {100}, h5::Compression::gzip).write({0, 100}, values.data());
    }
    file.close();
  }
  const auto size = std::filesystem::file_size(folder / "a.h5");
  BOOST_TEST(size < n * sizeof(float) * 1.05);  // zeros take almost no space
  const auto reads = [&](Range range, const std::string& name = "x") {
    const h5::File file = h5::File::open(folder / "a.h5");
    std::vector<float> out(range.size(), -1);
    file.dataset(name).read(range, out.data());
    return std::equal(out.begin(), out.end(), values.begin() + static_cast<std::ptrdiff_t>(range.begin));
  };
  BOOST_TEST(reads({0, n}));
  BOOST_TEST(reads({65535, 65537}));
  BOOST_TEST(reads({0, 100}, "small"));
  std::string bytes = test::read_file(folder / "a.h5");
  std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(size / 3), size / 3, '\0');
  test::write_file(folder / "a.h5", bytes);
  BOOST_TEST(reads({0, 2 * chunk}));
  BOOST_TEST(reads({8 * chunk + 5, n}));
  CHECK_CONTAINS(message_of<CallError>([&] { reads({0, n}); }), "H5Dread");
}

BOOST_AUTO_TEST_CASE(attributes_come_back) {
  const test::TemporaryFolder folder;
  const std::string long_text(100000, 'x');  // more than an object header holds
  {
    h5::File file = h5::File::create(folder / "a.h5");
    file.write_text("text", "caf\xc3\xa9");
    file.write_text("empty", "");
    file.write_text("long", long_text);
    file.write_integer("integer", 0xfedcba9876543210u);
    file.write_integers("integers", std::vector<std::uint64_t>{3, 1, 4});
    h5::Dataset dataset = file.create_dataset("d", {1});
    dataset.write_integer("begin", 17);
  }
  const h5::File file = h5::File::open(folder / "a.h5");
  BOOST_TEST(file.read_text("text") == "caf\xc3\xa9");
  BOOST_TEST(file.read_text("empty") == "");
  BOOST_TEST(file.read_text("long") == long_text);
  BOOST_TEST(file.read_integer("integer") == 0xfedcba9876543210u);
  BOOST_TEST(file.dataset("d").read_integer("begin") == 17u);
  BOOST_TEST(!file.has_attribute("begin"));
  CHECK_CONTAINS(message_of<CallError>([&] { file.read_text("absent"); }), "attribute absent of");
  CHECK_CONTAINS(message_of<CallError>([&] { file.read_text("integer"); }), "another type");
  CHECK_CONTAINS(message_of<CallError>([&] { file.read_integer("integers"); }), "3 elements");
}

BOOST_AUTO_TEST_CASE(a_virtual_dataset_shows_parts_of_other_files_even_after_a_move) {
  const test::TemporaryFolder folder;
  std::filesystem::create_directory(folder / "before");
  const Shape shape{4, 5};
  const auto values = counting(20, 100);
  const std::vector<Range> ranges{{0, 3}, {3, 13}, {15, 20}};  // 13 and 14 are in no range
  std::vector<h5::VirtualPart> parts;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const std::string name = "part" + std::to_string(i) + ".h5";
    h5::File::create(folder / "before" / name)
        .create_dataset("g/x", {ranges[i].size()})
        .write({0, ranges[i].size()}, values.data() + ranges[i].begin);
    parts.push_back({ranges[i], name, "g/x"});
  }
  h5::File::create(folder / "before" / "index.h5").create_virtual_dataset("some/x", shape, parts);
  std::filesystem::rename(folder / "before", folder / "after");

  const auto read = [&] { return test::read_plain_hdf5(folder / "after" / "index.h5", "some/x").values; };
  CHECK_CONTAINS(message_of([&] { h5::File::open(folder / "after" / "index.h5").dataset("some/x"); }),
                 "has its elements in other files");
  auto out = read();
  for (std::size_t i = 0; i < 20; ++i) BOOST_TEST((i == 13 || i == 14 ? std::isnan(out[i]) : out[i] == values[i]));
  std::filesystem::remove(folder / "after" / "part1.h5");
  out = read();
  for (std::size_t i = 0; i < 20; ++i) BOOST_TEST((i >= 3 && i < 15 ? std::isnan(out[i]) : out[i] == values[i]));
}

BOOST_AUTO_TEST_CASE(failures_say_what_failed_and_why) {
  const test::TemporaryFolder folder;
  CHECK_CONTAINS(message_of([&] { h5::File::open(folder / "absent.h5"); }), "absent.h5 cannot be opened (No such file");
  test::write_file(folder / "text.h5", "this is not one of those files");
  CHECK_CONTAINS(message_of([&] { h5::File::open(folder / "text.h5"); }), "text.h5 is not an HDF5 file");
  test::write_file(folder / "short.h5", "abc");
  CHECK_CONTAINS(message_of([&] { h5::File::open(folder / "short.h5"); }), "short.h5 is not an HDF5 file");

  const auto values = counting(5000);
  h5::File::create(folder / "a.h5").create_dataset("d", {5000}).write({0, 5000}, values.data());
  CHECK_CONTAINS(message_of<CallError>([&] { h5::File::create(folder / "a.h5"); }), "File exists");
  std::filesystem::copy_file(folder / "a.h5", folder / "cut.h5");
  std::filesystem::resize_file(folder / "cut.h5", 9000);
  const std::string cut = message_of([&] { h5::File::open(folder / "cut.h5"); });
  CHECK_CONTAINS(cut, "cut.h5 cannot be opened");
  CHECK_CONTAINS(cut, "truncated file");

  const h5::File file = h5::File::open(folder / "a.h5");
  const std::string missing = message_of<CallError>([&] { file.dataset("other"); });
  CHECK_CONTAINS(missing, "H5Dopen2 other of");
  CHECK_CONTAINS(missing, "h5.cpp:");
  std::vector<float> out(10);
  BOOST_CHECK_THROW(file.dataset("d").read({4995, 5005}, out.data()), InternalError);
}

BOOST_AUTO_TEST_CASE(a_write_that_does_not_fit_throws_and_leaves_the_library_usable) {
  const test::TemporaryFolder folder;
  std::optional<test::FileSizeLimit> limit(200000);
  const auto values = counting(100000);
  const std::string message = message_of<CallError>([&] {
    h5::File file = h5::File::create(folder / "big.h5");
    file.create_dataset("d", {values.size()}).write({0, values.size()}, values.data());
    file.close();
  });
  // Small pieces are buffered by HDF5, and fail only when the buffers are written.
  const std::string late = message_of<CallError>([&] {
    h5::File file = h5::File::create(folder / "late.h5");
    for (int i = 0; i < 40; ++i) {
      h5::Dataset dataset = file.create_dataset("d" + std::to_string(i), {2000});
      dataset.write({0, 2000}, values.data());
    }
    file.close();
  });
  // Written past the page cache; the size limit is reached in the middle of a piece.
  const auto many = counting(2000000);
  limit.reset();
  limit.emplace(5000001);
  const std::string large = message_of<CallError>([&] {
    h5::File file = h5::File::create(folder / "large.h5");
    file.create_dataset("d", {many.size()}).write({0, many.size()}, many.data());
    file.close();
  });
  limit.reset();
  CHECK_CONTAINS(large, "File too large");
  CHECK_CONTAINS(message, "big.h5");
  CHECK_CONTAINS(message, "File too large");
  CHECK_CONTAINS(late, "File too large");
  h5::File file = h5::File::create(folder / "next.h5");
  file.create_dataset("d", {values.size()}).write({0, values.size()}, values.data());
  file.close();
  std::filesystem::remove_all(folder.path());
}

BOOST_AUTO_TEST_CASE(threads_take_turns) {
  const test::TemporaryFolder folder;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&folder, t] {
      const auto values = counting(1000, static_cast<float>(t));
      for (int i = 0; i < 20; ++i) {
        h5::File file = h5::File::create(folder / (std::to_string(t) + "-" + std::to_string(i)));
        file.create_dataset("d", {10, 100}).write({0, 1000}, values.data());
        file.close();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (int t = 0; t < 4; ++t) {
    std::vector<float> out(1000);
    h5::File::open(folder / (std::to_string(t) + "-19")).dataset("d").read({0, 1000}, out.data());
    BOOST_CHECK(out == counting(1000, static_cast<float>(t)));
  }
}
