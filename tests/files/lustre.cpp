// Striping and quotas on Lustre: what lfs prints, and calls of a stand-in for lfs.
#include "files/lustre.hpp"

#include <boost/test/unit_test.hpp>

#include <cstdlib>
#include <string>

#include "base/error.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;
namespace fs = std::filesystem;

namespace {

/// Puts a shell script in front of all other programs of the name lfs.
class StandInLfs {
 public:
  explicit StandInLfs(const std::string& script) : path_(std::getenv("PATH")) {
    write_file(folder / "lfs", "#!/bin/sh\necho \"$@\" >>" + (folder / "calls").string() + "\n" + script);
    fs::permissions(folder / "lfs", fs::perms::owner_all);
    ::setenv("PATH", (folder.path().string() + ":" + path_).c_str(), 1);
  }
  ~StandInLfs() { ::setenv("PATH", path_.c_str(), 1); }
  std::string calls() const { return read_file(folder / "calls"); }
  TemporaryFolder folder;

 private:
  std::string path_;
};

}  // namespace

BOOST_AUTO_TEST_CASE(a_stripe_has_a_count_and_a_size) {
  BOOST_TEST(parse_stripe("4")->count == 4);
  BOOST_TEST(parse_stripe("4")->size == "");
  BOOST_TEST(parse_stripe("-1:4M")->count == -1);
  BOOST_TEST(parse_stripe("-1:4M")->size == "4M");
  BOOST_TEST(parse_stripe("8:65536")->size == "65536");
  for (const char* bad : {"", "0", "-2", "x", "4:", "4:M", "4:0", "4:100K", "4:1000", "4:4MiB", "4:-4M", ":4M", "4:4M:1"})
    BOOST_TEST(!parse_stripe(bad), bad);
}

// The forms of Lustre 2.10 to 2.15, from the Lustre wiki ("Configuring Lustre File Striping"), the manual and mailing lists.
BOOST_AUTO_TEST_CASE(layouts_of_folders_are_described) {
  BOOST_TEST(describe_striping("stripe_count:  2 stripe_size:   4194304 pattern:       0 stripe_offset: -1\n") ==
             "2 targets in stripes of 4.00 MiB");
  BOOST_TEST(describe_striping("/scratch/me\nstripe_count:   -1 stripe_size:    1048576 stripe_offset:  -1\n") ==
             "all targets in stripes of 1.00 MiB");
  BOOST_TEST(describe_striping("lmm_stripe_count:  1\nlmm_stripe_size:   1048576\nlmm_pattern:       raid0\n") ==
             "1 target in stripes of 1.00 MiB");
  BOOST_TEST(describe_striping(R"(  lcm_layout_gen:    0
  lcm_mirror_count:  1
  lcm_entry_count:   3
    lcme_id:             N/A
    lcme_mirror_id:      N/A
    lcme_flags:          0
    lcme_extent.e_start: 0
    lcme_extent.e_end:   65536
      stripe_count:  0       stripe_size:   65536       pattern:       mdt       stripe_offset: -1

    lcme_id:             N/A
    lcme_mirror_id:      N/A
    lcme_flags:          0
    lcme_extent.e_start: 65536
    lcme_extent.e_end:   67108864
      stripe_count:  4       stripe_size:   4194304       pattern:       raid0       stripe_offset: -1

    lcme_id:             N/A
    lcme_mirror_id:      N/A
    lcme_flags:          0
    lcme_extent.e_start: 67108864
    lcme_extent.e_end:   EOF
      stripe_count:  -1       stripe_size:   4194304       pattern:       raid0       stripe_offset: -1
)") == "in the metadata server up to 64.0 KiB, then 4 targets in stripes of 4.00 MiB up to 64.0 MiB, then all targets in "
       "stripes "
       "of 4.00 MiB");
  for (const char* none :
       {"", "error: llapi_semantic_traverse: Failed to open '/x'", "stripe_count: 1", "stripe_count: x stripe_size: 1"})
    BOOST_TEST(describe_striping(none) == "");
}

BOOST_AUTO_TEST_CASE(quotas_are_what_is_left) {
  const QuotaLeft some = parse_quota("/scratch   10232   10240   20480       -      24      25      30       -\n");
  BOOST_TEST(some.bytes.value() == (20480u - 10232u) * 1024u);
  BOOST_TEST(some.files.value() == 6u);
  const QuotaLeft over = parse_quota("/lustre/a/long/path\n 20532*  10240   20480   6d23h      34*      5      0       none\n");
  BOOST_TEST(over.bytes.value() == 0u);
  BOOST_TEST(over.files.value() == 0u);
  const QuotaLeft none = parse_quota("/scratch  123  0  0  -  456  0  0  -");
  BOOST_TEST((!none.bytes && !none.files));
  for (const char* bad : {"", "lfs quota: Permission denied", "/scratch - - - - - - - -", "a b c d e f g h i"})
    BOOST_TEST((!parse_quota(bad).bytes && !parse_quota(bad).files));
}

BOOST_AUTO_TEST_CASE(lfs_is_called) {
  BOOST_TEST(!is_on_lustre("."));
  BOOST_TEST(!is_on_lustre("no/such/folder"));
  {
    const StandInLfs lfs(
        "case $1 in getstripe) echo 'stripe_count: 2 stripe_size: 1048576 pattern: raid0';;"
        " quota) echo \"/x 5 0 $((10 + 0$4)) - 1 0 7 -\";; esac");
    const std::string folder = lfs.folder.path().string();
    BOOST_TEST(striping_of(folder) == "2 targets in stripes of 1.00 MiB");
    BOOST_TEST(set_striping(folder, {.count = -1, .size = "4M"}) == "");
    BOOST_TEST(set_striping(folder, *parse_stripe("2")) == "");
    BOOST_TEST(quota_left(folder).files.value() == 6u);
    BOOST_TEST(quota_left(folder).bytes.value() >= 5u * 1024u);
    CHECK_CONTAINS(lfs.calls(), "getstripe -d " + folder + "\nsetstripe -c -1 -S 4M " + folder + "\nsetstripe -c 2 " + folder +
                                    "\nquota -q -u ");
  }
  {
    const StandInLfs refuses("echo \"error: setstripe: invalid stripe count '9999'\"; exit 22");
    CHECK_CONTAINS(message_of<UserError>([&] { set_striping("/x", *parse_stripe("9999")); }),
                   "lfs setstripe -c 9999 /x is refused by Lustre (error: setstripe: invalid stripe count '9999'");
    CHECK_CONTAINS(striping_of("/x"), "unknown (lfs getstripe -d printed: error: setstripe: invalid");
    BOOST_TEST(!quota_left(refuses.folder.path()).bytes);
  }
  CHECK_CONTAINS(set_striping("/x", {}), "there is no lfs on this node");
  CHECK_CONTAINS(striping_of("/x"), "unknown (there is no lfs on this node");
}
