// Tokens in HDF5 files of other tools: of every integer type, in chunks, compressed, of one or two dimensions.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include <hdf5.h>

#include "data/open_data.hpp"
#include "data/samples.hpp"
#include "h5/h5.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"
#include "support/tokens.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// Adds a dataset to a file, and makes the file if it does not exist. `extent` has one or more dimensions.
void write_dataset(const std::filesystem::path& path, const char* name, hid_t type, const std::vector<hsize_t>& extent,
                   const std::vector<std::int64_t>& values, bool compressed = false) {
  const hid_t file = std::filesystem::exists(path) ? H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT)
                                                   : H5Fcreate(path.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, H5P_DEFAULT);
  const hid_t space = H5Screate_simple(static_cast<int>(extent.size()), extent.data(), nullptr);
  const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
  if (compressed) {
    std::vector<hsize_t> chunk;
    for (const hsize_t n : extent) chunk.push_back(std::min<hsize_t>(n, 7));
    H5Pset_chunk(creation, static_cast<int>(chunk.size()), chunk.data());
    H5Pset_shuffle(creation);
    H5Pset_deflate(creation, 6);
    H5Pset_fletcher32(creation);
  }
  const hid_t dataset = H5Dcreate2(file, name, type, space, H5P_DEFAULT, creation, H5P_DEFAULT);
  BOOST_TEST_REQUIRE(H5Dwrite(dataset, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0);
  H5Dclose(dataset);
  H5Pclose(creation);
  H5Sclose(space);
  BOOST_TEST_REQUIRE(H5Fclose(file) >= 0);
}

std::vector<std::int64_t> counting(std::size_t n) {
  std::vector<std::int64_t> values(n);
  std::iota(values.begin(), values.end(), 0);
  return values;
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_type_of_integers) {
  const TemporaryFolder folder;
  const std::vector<std::int64_t> values = counting(100);
  const std::vector<std::uint32_t> expected(values.begin(), values.end());
  const std::tuple<hid_t, std::uint64_t> types[] = {
      {H5T_STD_U8LE, 255},         {H5T_STD_I8LE, 127},         {H5T_STD_U16LE, 65535},      {H5T_STD_I16BE, 32767},
      {H5T_STD_U32LE, 4294967295}, {H5T_STD_I32LE, 2147483647}, {H5T_STD_U64BE, 4294967295}, {H5T_STD_I64LE, 4294967295}};
  int number = 0;
  for (const auto& [type, largest] : types)
    for (const bool compressed : {false, true}) {
      const auto path = folder / (std::to_string(number++) + ".h5");
      write_dataset(path, "tokens", type, {100}, values, compressed);
      const auto tokens = open_token_file(path);
      BOOST_TEST(all_tokens(*tokens) == expected, boost::test_tools::per_element());
      BOOST_TEST(tokens->largest_possible() == largest);
      BOOST_TEST(doubt_type(*tokens, 200'000).has_value() == (largest < 199'999));
      BOOST_TEST(!tokens->has_documents());
      std::vector<std::uint32_t> some(10);
      tokens->read(33, some);
      BOOST_TEST(some.front() == 33u);
      BOOST_TEST(check_vocabulary(*tokens, 100, 0, 1).largest == 99u);
      CHECK_CONTAINS(message_of([&] { check_vocabulary(*tokens, 60, 1, 2); }), "token 99 at position 99 of '" + path.string());
    }
}

BOOST_AUTO_TEST_CASE(rows_follow_each_other) {
  const TemporaryFolder folder;
  const auto path = folder / "rows.hdf5";
  write_dataset(path, "input_ids", H5T_STD_I32LE, {20, 5}, counting(100), true);
  write_dataset(path, "attention_mask", H5T_STD_I32LE, {20, 5}, std::vector<std::int64_t>(100, 1));
  const auto tokens = open_token_file(path);
  BOOST_TEST(tokens->size() == 100u);
  std::vector<std::uint32_t> some(13);
  tokens->read(4, some);
  for (std::uint32_t i = 0; i < some.size(); ++i) BOOST_TEST(some[i] == 4 + i);
}

BOOST_AUTO_TEST_CASE(datasets_that_would_change_training_are_refused) {
  const TemporaryFolder folder;
  std::vector<std::int64_t> ones(20, 1), zeros(20, 0), columns;
  for (int i = 0; i < 20; ++i) columns.push_back(i % 5);
  int number = 0;
  const auto with = [&](const char* name, const std::vector<std::int64_t>& values) {
    const auto path = folder / (std::to_string(number++) + ".h5");
    write_dataset(path, "input_ids", H5T_STD_I32LE, {4, 5}, counting(20));
    write_dataset(path, name, H5T_STD_I32LE, {values.size()}, values);
    return open_token_file(path);
  };
  const auto changed = [](std::vector<std::int64_t> values, std::size_t at, std::int64_t value) {
    values[at] = value;
    return values;
  };
  const std::tuple<const char*, std::vector<std::int64_t>, std::int64_t> harmless[] = {{"labels", counting(20), -100},
                                                                                       {"attention_mask", ones, 0},
                                                                                       {"token_type_ids", zeros, 1},
                                                                                       {"segment_ids", zeros, 1},
                                                                                       {"position_ids", columns, 9}};
  for (const auto& [name, values, other] : harmless) {
    const auto same = with(name, values), differs = with(name, changed(values, 13, other));
    for (std::size_t part = 0; part < 3; ++part) same->check(part, 3);
    BOOST_TEST(same->unread() == "");
    differs->check(0, 3);  // another rank's part
    CHECK_CONTAINS(message_of([&] { check_vocabulary(*differs, 20, 1, 2); }),
                   "has a dataset \"" + std::string(name) + "\", which is " + std::to_string(other) + " at position 13 (");
    CHECK_CONTAINS(message_of([&] { with(name, counting(19)); }), "which has 19 numbers for 20 tokens");
  }
  CHECK_CONTAINS(message_of([&] { with("completion_mask", ones); }),
                 "has a dataset \"completion_mask\" (it is not read, but would change training); remove \"completion_mask\"; "
                 "write which tokens count in the loss as a dataset \"loss_mask\"");
  CHECK_CONTAINS(message_of([&] { with("tokens", ones); }), "two datasets of tokens, \"tokens\" and \"input_ids\"");

  // Unknown datasets are named.
  const auto path = folder / "more.h5";
  write_dataset(path, "tokens", H5T_STD_I32LE, {20}, counting(20));
  for (const char* name : {"id", "special_tokens_mask", "quality"}) write_dataset(path, name, H5T_STD_I32LE, {20}, ones);
  {
    const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), space = H5Screate(H5S_SCALAR);
    H5Gclose(H5Gcreate2(file, "valid", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    const hid_t dataset = H5Dopen2(file, "tokens", H5P_DEFAULT);
    for (const auto& [object, name] : {std::pair(file, "seed"), {dataset, "pad_token_id"}, {dataset, "CLASS"}})
      H5Aclose(H5Acreate2(object, name, H5T_STD_I32LE, space, H5P_DEFAULT, H5P_DEFAULT));
    H5Dclose(dataset);
    H5Sclose(space);
    H5Fclose(file);
  }
  // Also attributes of the datasets that are used.
  write_dataset(folder / "masked.h5", "tokens", H5T_STD_I32LE, {20}, counting(20));
  write_dataset(folder / "masked.h5", "loss_mask", H5T_STD_I32LE, {20}, ones);
  {
    const hid_t file = H5Fopen((folder / "masked.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT), space = H5Screate(H5S_SCALAR);
    const hid_t dataset = H5Dopen2(file, "loss_mask", H5P_DEFAULT);
    H5Aclose(H5Acreate2(dataset, "inverted", H5T_STD_I32LE, space, H5P_DEFAULT, H5P_DEFAULT));
    H5Dclose(dataset);
    H5Sclose(space);
    H5Fclose(file);
  }
  CHECK_CONTAINS(open_token_file(folder / "masked.h5")->unread(), "(attribute \"inverted\" of loss_mask); if they define");

  std::vector<std::unique_ptr<Tokens>> files;
  for (int i = 0; i < 3; ++i) files.push_back(open_token_file(path));
  const std::string warning = join(std::move(files))->unread();
  CHECK_CONTAINS(warning,
                 "has parts that are not used (dataset \"quality\", group \"valid\", attribute \"seed\", attribute "
                 "\"pad_token_id\"); if they define");
  CHECK_CONTAINS(warning, "the same holds for 2 more files");
}

BOOST_AUTO_TEST_CASE(masks_and_lengths_are_no_tokens) {
  const TemporaryFolder folder;
  for (const char* name : {"loss_mask", "document_lengths"}) {
    const auto path = folder / (std::string(name) + ".h5");
    write_dataset(path, name, H5T_STD_I32LE, {20}, std::vector<std::int64_t>(20, 1));
    CHECK_CONTAINS(message_of([&] { check_vocabulary(*open_token_file(path), 20, 1, 2); }),
                   "its only dataset is \"" + std::string(name) + "\"");
  }
  write_dataset(folder / "t.h5", "tokens", H5T_STD_I32LE, {20}, counting(20));
  BOOST_TEST(open_mixture((folder / "t.h5").string(), {5}, (folder / "loss_mask.h5").string()).samples(0).targets() == 19u);
  write_dataset(folder / "t.h5", "document_lengths", H5T_STD_I32LE, {2}, {10, 9});  // also if documents are not used
  const auto tokens = open_token_file(folder / "t.h5");
  tokens->check(1, 2);
  CHECK_CONTAINS(message_of([&] { tokens->check(0, 2); }), "has documents of 19 tokens together, but 20 tokens");
}

BOOST_AUTO_TEST_CASE(what_is_no_token) {
  const TemporaryFolder folder;
  const auto path = folder / "t.h5";
  write_dataset(path, "text", H5T_STD_I64LE, {3}, {5, -1, std::int64_t{1} << 33});
  BOOST_TEST(tokens_of(path) == (std::vector<std::uint32_t>{5, no_token, no_token}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(files_that_cannot_be_used) {
  const TemporaryFolder folder;
  const auto error = [&](const char* name) { return message_of([&] { open_token_file(folder / name); }); };
  write_dataset(folder / "two.h5", "a", H5T_STD_I32LE, {10}, counting(10));
  write_dataset(folder / "two.h5", "b", H5T_STD_I32LE, {10}, counting(10));
  CHECK_CONTAINS(error("two.h5"), "it is an HDF5 file of 2 datasets, none of which is called \"tokens\" or \"input_ids\"");
  write_dataset(folder / "float.h5", "tokens", H5T_IEEE_F32LE, {10}, counting(10));
  CHECK_CONTAINS(error("float.h5"), "does not have integers");
  write_dataset(folder / "deep.h5", "tokens", H5T_STD_I32LE, {2, 5, 1}, counting(10));
  CHECK_CONTAINS(error("deep.h5"), "its tokens have 3 dimensions");
  H5Fclose(H5Fcreate((folder / "empty.h5").c_str(), H5F_ACC_EXCL, H5P_DEFAULT, H5P_DEFAULT));
  CHECK_CONTAINS(error("empty.h5"), "it is an HDF5 file without datasets");
  write_file(folder / "cut.h5", read_file(folder / "two.h5").substr(0, 1000));
  CHECK_CONTAINS(error("cut.h5"), "copy the file again, or use another one");
  write_dataset(folder / "chunk.h5", "tokens", H5T_STD_I32LE, {1000}, counting(1000), /*compressed=*/true);
  std::string bytes = read_file(folder / "chunk.h5");
  bytes.replace(bytes.rfind("\x78\x9c") + 2, 8, 8, '\xff');  // damages the beginning of a compressed chunk
  write_file(folder / "chunk.h5", bytes);
  CHECK_CONTAINS(message_of<DamagedError>([&] { tokens_of(folder / "chunk.h5"); }), "chunk.h5 cannot be read (can't read data");
  {  // HDF5 reads chunks that were never written as zeros
    const hid_t file = H5Fcreate((folder / "sparse.h5").c_str(), H5F_ACC_EXCL, H5P_DEFAULT, H5P_DEFAULT);
    const hsize_t extent[] = {100}, chunk[] = {10}, start[] = {40}, count[] = {60};
    const hid_t space = H5Screate_simple(1, extent, nullptr), part = H5Screate_simple(1, count, nullptr);
    const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
    const auto make = [&](const char* name) {
      return H5Dcreate2(file, name, H5T_STD_U16LE, space, H5P_DEFAULT, creation, H5P_DEFAULT);
    };
    H5Dclose(make("none"));
    H5Pset_chunk(creation, 1, chunk);
    const hid_t dataset = make("tokens");
    H5Sselect_hyperslab(space, H5S_SELECT_SET, start, nullptr, count, nullptr);
    const std::vector<std::int64_t> values = counting(60);
    BOOST_TEST_REQUIRE(H5Dwrite(dataset, H5T_NATIVE_INT64, part, space, H5P_DEFAULT, values.data()) >= 0);
    for (const hid_t id : {space, part}) H5Sclose(id);
    H5Pclose(creation);
    H5Dclose(dataset);
    BOOST_TEST_REQUIRE(H5Fclose(file) >= 0);
  }
  CHECK_CONTAINS(message_of<DamagedError>([&] { open_token_file(folder / "sparse.h5"); }),
                 "has parts that are not in the file (only 6 of its 10 chunks are stored)");
  {
    const h5::File file = h5::File::open(folder / "sparse.h5", Verify::no);
    CHECK_CONTAINS(message_of<DamagedError>([&] { file.integers("none").require_whole(); }),
                   "none of its elements was ever written");
  }
  write_file(folder / "zeros.h5", "\x89HDF\r\n\x1a\n" + std::string(4000, '\0'));
  CHECK_CONTAINS(error("zeros.h5"), "zeros.h5");
}

BOOST_AUTO_TEST_CASE(what_is_appended_reads_back) {
  const TemporaryFolder folder;
  for (const std::size_t bytes : {2, 4})
    for (const auto compression : {h5::Compression::none, h5::Compression::gzip}) {
      const auto path = folder / (std::to_string(bytes) + (compression == h5::Compression::gzip ? "z.h5" : ".h5"));
      std::vector<std::uint32_t> expected;
      {
        h5::File file = h5::File::create(path);
        {
          h5::Integers tokens = file.create_integers("tokens", bytes, compression);
          for (const std::size_t n : {std::size_t{1}, std::size_t{100'000}, std::size_t{0}, std::size_t{65'536}}) {
            std::vector<std::uint32_t> more(n);
            for (std::size_t i = 0; i < n; ++i) more[i] = static_cast<std::uint32_t>((expected.size() + i) % 60'000);
            tokens.append(more);
            expected.insert(expected.end(), more.begin(), more.end());
          }
        }
        file.close();
      }
      BOOST_TEST((tokens_of(path) == expected));
      BOOST_TEST(open_token_file(path)->largest_possible() == (bytes == 2 ? 65535u : 4294967295u));
    }
}

BOOST_AUTO_TEST_CASE(a_loss_mask_beside_the_tokens) {
  const TemporaryFolder folder;
  write_dataset(folder / "a.h5", "tokens", H5T_STD_U16LE, {30}, counting(30));
  std::vector<std::int64_t> mask(30, 0);
  mask[4] = mask[29] = 1;
  write_dataset(folder / "a.h5", "loss_mask", H5T_STD_U8LE, {30}, mask);
  const Samples samples(open_token_file(folder / "a.h5"), {10});
  BOOST_TEST(samples.count() == 2u);  // of three sequences
  BOOST_TEST(samples.targets() == 2u);
  std::vector<std::int32_t> inputs(10), targets(10);
  samples.read(0, 30, inputs.data(), targets.data());
  BOOST_TEST(targets == (std::vector<std::int32_t>{-1, -1, -1, 4, -1, -1, -1, -1, -1, -1}), boost::test_tools::per_element());

  std::vector<std::unique_ptr<Tokens>> files;
  for (int i = 0; i < 2; ++i) files.push_back(open_token_file(folder / "a.h5"));
  BOOST_TEST(Samples(join(std::move(files)), {10}).targets() == 4u);
  write_dataset(folder / "b.h5", "tokens", H5T_STD_U16LE, {30}, counting(30));
  std::vector<std::unique_ptr<Tokens>> mixed;
  for (const char* const name : {"a.h5", "b.h5"}) mixed.push_back(open_token_file(folder / name));
  const std::string complaint = message_of([&] { Samples(join(std::move(mixed)), {10}); });
  CHECK_CONTAINS(complaint, "1 have a loss mask, and 1 do not");

  // In a list with mask files, the HDF5 file's name means its own mask, for concatenated files and in a mixture.
  const std::string a = (folder / "a.h5").string(), b = (folder / "b.h5").string(), b_mask = (folder / "m.h5").string();
  write_dataset(b_mask, "tokens", H5T_STD_U8LE, {30}, std::vector<std::int64_t>(30, 1));
  BOOST_TEST(open_mixture(b + "," + a, {10}, b_mask + "," + a).samples(0).targets() == 31u);  // the first one is no target
  const Mixture both = open_mixture(b + ":0.5," + a + ":0.5", {10}, b_mask + "," + a);
  BOOST_TEST(both.samples(0).targets() == 29u);
  BOOST_TEST(both.samples(1).targets() == 2u);
}
