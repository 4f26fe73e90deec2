// InputFile: which files are opened and which are refused, without waiting.
#include <sys/resource.h>
#include <sys/stat.h>
#include <boost/test/unit_test.hpp>

#include "files/input_file.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;

BOOST_AUTO_TEST_CASE(plain_files_are_read_by_position) {
  const TemporaryFolder folder;
  write_file(folder / "a", "0123456789");
  const InputFile file(folder / "a");
  BOOST_TEST(file.size() == 10u);
  std::string out(4, '-');
  file.read(3, out.data(), out.size());
  BOOST_TEST(out == "3456");
  CHECK_CONTAINS(message_of<DamagedError>([&] { file.read(8, out.data(), out.size()); }), "ends before byte 10");
  BOOST_TEST(read_text_file(folder / "a") == "0123456789");
  CHECK_CONTAINS(message_of([&] { read_text_file(folder / "a", 9); }), "a file of this kind has at most 9 B");
}

BOOST_AUTO_TEST_CASE(what_a_path_names) {
  const TemporaryFolder folder;
  write_file(folder / "a", "x");
  BOOST_REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  std::filesystem::create_symlink("nowhere", folder / "dangling");
  std::filesystem::create_symlink("a", folder / "link");
  BOOST_CHECK(kind_of(folder / "a") == PathKind::file);
  BOOST_CHECK(kind_of(folder / "link") == PathKind::file);
  BOOST_CHECK(kind_of(folder.path()) == PathKind::folder);
  BOOST_CHECK(kind_of(folder / "pipe") == PathKind::other);
  for (const char* name : {"absent", "a/b", "dangling"}) BOOST_CHECK(kind_of(folder / name) == PathKind::missing);
  BOOST_TEST(size_of_file(folder / "a").value() == 1u);
  BOOST_TEST(!size_of_file(folder / "pipe").has_value());
  BOOST_TEST(!size_of_file(folder / "absent").has_value());
}

// No process writes to the pipe, so a blocking open would wait forever.
BOOST_AUTO_TEST_CASE(whatever_is_no_plain_file_is_refused_at_once) {
  const TemporaryFolder folder;
  BOOST_REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  for (const std::filesystem::path& path : {folder / "pipe", folder.path(), std::filesystem::path("/dev/null")})
    CHECK_CONTAINS(message_of([&] { InputFile file(path); }), "is not a file");
  CHECK_CONTAINS(message_of([&] { InputFile file(folder / "absent"); }), "No such file or directory");
}

BOOST_AUTO_TEST_CASE(more_files_than_a_process_may_open) {
  const TemporaryFolder folder;
  write_file(folder / "a", "x");
  rlimit before{};
  BOOST_REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit few{3, before.rlim_max};  // the standard streams
  BOOST_REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
  const std::string message = message_of<RunError>([&] { InputFile file(folder / "a"); });
  BOOST_REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK_CONTAINS(message, "cannot be opened (Too many open files); allow more open files");
}
