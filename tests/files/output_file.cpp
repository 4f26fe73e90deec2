// Which files this program makes and removes, and which it does not change.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tuple>

#include <boost/test/unit_test.hpp>

#include "files/output_file.hpp"
#include "support/file_size_limit.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;

BOOST_AUTO_TEST_CASE(written_bytes_are_read_back) {
  const TemporaryFolder folder;
  std::string large(5'000'003, '\0');
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 7 + i / 4096);
  {
    OutputFile file(folder / "a");
    file.write(0, "head", 4);
    file.write(4, large.data(), large.size());  // past the page cache, except for its ends
    std::string out(10, '-');
    file.read(2, out.data(), out.size());
    BOOST_TEST(out == "ad" + large.substr(0, 8));
    BOOST_TEST(file.size() == large.size() + 4);
    CHECK_CONTAINS(message_of<CallError>([&] { file.read(large.size(), out.data(), out.size()); }), "the file ends there");
    file.resize(large.size());
    file.finish();
  }
  BOOST_TEST((read_file(folder / "a") == "head" + large.substr(0, large.size() - 4)));
  OutputFile again(folder / "a", OutputFile::Open::existing);
  BOOST_TEST(again.size() == large.size());
}

BOOST_AUTO_TEST_CASE(nothing_is_written_through_a_link_or_over_a_file) {
  const TemporaryFolder folder;
  write_file(folder / "victim", "precious");
  std::filesystem::create_symlink("victim", folder / "link");
  std::filesystem::create_symlink("absent", folder / "dangling");
  for (const char* name : {"victim", "link", "dangling"})
    CHECK_CONTAINS(message_of<CallError>([&] { OutputFile file(folder / name); }), "File exists");
  for (const char* name : {"link", "dangling"})
    message_of<CallError>([&] { OutputFile file(folder / name, OutputFile::Open::existing); });
  std::filesystem::create_hard_link(folder / "victim", folder / "twin");
  CHECK_CONTAINS(message_of<CallError>([&] { OutputFile file(folder / "twin", OutputFile::Open::existing); }), "a hard link");
  write_text_file_durably(folder / "link", "new");  // replaces the link
  BOOST_TEST(read_file(folder / "link") == "new");
  {
    const FileSizeLimit limit(1000);
    message_of<CallError>([&] { write_text_file_durably(folder / "long", std::string(2000, 'x')); });
  }
  BOOST_TEST(!std::filesystem::exists(folder / "long.fsdp-tmp"));
  BOOST_TEST(read_file(folder / "victim") == "precious");
  BOOST_TEST(!std::filesystem::exists(folder / "absent"));
}

BOOST_AUTO_TEST_CASE(files_of_another_user_are_not_written) {
  if (::geteuid() != 0) {
    BOOST_TEST_MESSAGE("not root: skipped");
    return;
  }
  const TemporaryFolder folder;
  write_file(folder / "theirs", "precious");
  BOOST_REQUIRE(::chown((folder / "theirs").c_str(), 1, 1) == 0);
  CHECK_CONTAINS(message_of<CallError>([&] { OutputFile file(folder / "theirs", OutputFile::Open::existing); }),
                 "belongs to another user");
  // A folder of a member of this user's group that the group may write to.
  for (const auto& [mode, group, may] : {std::tuple{0664, ::getegid(), true}, {0666, ::getegid(), false}, {0664, 1u, false}}) {
    BOOST_REQUIRE(::chown((folder / "theirs").c_str(), 1, group) == 0);
    BOOST_REQUIRE(::chmod((folder / "theirs").c_str(), static_cast<mode_t>(mode)) == 0);
    struct stat info {};
    BOOST_REQUIRE(::stat((folder / "theirs").c_str(), &info) == 0);
    BOOST_TEST(is_ours(info) == may);
  }
  std::filesystem::create_symlink("theirs", folder / "log");
  require_no_foreign_link(folder / "log");  // this user's own link
  BOOST_REQUIRE(::lchown((folder / "log").c_str(), 1, 1) == 0);
  CHECK_CONTAINS(message_of([&] { require_no_foreign_link(folder / "log"); }), "a link that another user has made");
}

BOOST_AUTO_TEST_CASE(a_file_is_known_by_more_than_its_name) {
  const TemporaryFolder folder;
  write_file(folder / "a", "");
  const int fd = ::open((folder / "a").c_str(), O_RDONLY | O_CLOEXEC);
  BOOST_TEST(is_file_at(fd, folder / "a"));
  std::filesystem::rename(folder / "a", folder / "b");
  BOOST_TEST(!is_file_at(fd, folder / "a"));
  write_file(folder / "a", "");
  BOOST_TEST(!is_file_at(fd, folder / "a"));
  BOOST_TEST(is_file_at(fd, folder / "b"));
  ::close(fd);
  std::filesystem::create_directory_symlink("/", folder / "link");
  require_no_link(folder / "absent");
  require_no_link(folder.path());
  for (const char* name : {"link", "a"}) CHECK_CONTAINS(message_of([&] { require_no_link(folder / name); }), "is in the way");
}

BOOST_AUTO_TEST_CASE(only_our_files_are_removed) {
  const TemporaryFolder folder;
  const auto is_ours = [](const std::string& name) { return name == "ours" || name == "folder" || name == "link"; };
  const auto fill = [&](const std::filesystem::path& into, const std::vector<std::string>& names) {
    std::filesystem::create_directories(into);
    for (const std::string& name : names) write_file(into / name, name);
  };
  BOOST_TEST(remove_our_files(folder / "absent", is_ours));
  fill(folder / "a", {"ours"});
  std::filesystem::create_symlink("/", folder / "a" / "link");
  BOOST_TEST(remove_our_files(folder / "a", is_ours));
  BOOST_TEST(!std::filesystem::exists(folder / "a"));
  fill(folder / "b", {"ours", "notes.txt"});
  fill(folder / "b" / "folder", {"ours"});
  BOOST_TEST(!remove_our_files(folder / "b", is_ours));
  BOOST_TEST(!std::filesystem::exists(folder / "b" / "ours"));
  BOOST_TEST(std::filesystem::exists(folder / "b" / "notes.txt"));
  BOOST_TEST(std::filesystem::exists(folder / "b" / "folder" / "ours"));
  std::filesystem::create_symlink("b", folder / "c");
  write_file(folder / "b" / "ours", "");
  BOOST_TEST(!remove_our_files(folder / "c", is_ours));
  BOOST_TEST(std::filesystem::exists(folder / "b" / "ours"));
}
