// One rank's disk is full, simulated by a limit on the size of its files: every rank throws, new files are removed, and
// existing files are kept.
#include "mpi_main.hpp"

#include <array>

#include "checkpoint/support.hpp"
#include "comm/agree.hpp"
#include "support/file_size_limit.hpp"

using namespace fsdp;
using namespace fsdp::test;
namespace fs = std::filesystem;

namespace {

/// A folder whose path all ranks have.
class SharedFolder {
 public:
  SharedFolder() {
    std::array<char, 256> name{};
    if (world().rank() == 0) {
      folder_ = std::make_unique<TemporaryFolder>();
      folder_->path().string().copy(name.data(), name.size() - 1);
    }
    world().broadcast(name.data(), name.size(), 0);
    path_ = name.data();
  }
  ~SharedFolder() { world().barrier(); }
  const fs::path& path() const { return path_; }

 private:
  std::shared_ptr<Stream> stream_ = make_host_stream();
  std::unique_ptr<TemporaryFolder> folder_;
  fs::path path_;
};

}  // namespace

BOOST_AUTO_TEST_CASE(one_full_disk_fails_every_rank_and_harms_nothing) {
  const SharedFolder folder;
  Run run;
  run.world_size = world().size();
  const fs::path step = save(folder.path(), run, world());
  run.update = 200;
  const int failing = world().size() - 1;
  // The disk is full while data are written, and while HDF5 writes its structures when the file is closed.
  for (const rlim_t limit : {3000, 9000, 100}) {
    std::string message;
    {
      const auto limited = world().rank() == failing ? std::make_unique<FileSizeLimit>(limit) : nullptr;
      message = message_of<CollectiveError>([&] { save(folder.path(), run, world()); });
    }
    CHECK_CONTAINS(message, "step-00000200.tmp/rank-0000" + std::to_string(failing));
    CHECK_CONTAINS(message, "KiB of tensors could not be written");
    CHECK_CONTAINS(message, "File too large");
    CHECK_CONTAINS(message, "free some space");
    world().barrier();
    BOOST_CHECK((list(folder.path()) == std::vector<std::string>{"step-00000100"}));
    world().barrier();
  }
  CheckpointReader::open(step)->verify(world().rank(), world().size());
  BOOST_TEST(save(folder.path(), run, world()) == folder.path() / "step-00000200");  // there is free space again
  CheckpointReader::open(folder.path() / "step-00000200")->verify(world().rank(), world().size());
}

BOOST_AUTO_TEST_CASE(one_full_disk_fails_every_rank_of_a_shared_file) {
  const SharedFolder folder;
  Run run;
  run.world_size = world().size();
  run.files = 1;
  const int failing = world().size() - 1;
  for (const rlim_t limit : {100, 9000}) {
    std::string message;
    {
      const auto limited = world().rank() == failing ? std::make_unique<FileSizeLimit>(limit) : nullptr;
      message = message_of<CollectiveError>([&] { save(folder.path(), run, world()); });
    }
    CHECK_CONTAINS(message, "rank-00000-of-00001.h5");
    CHECK_CONTAINS(message, "File too large");
    world().barrier();
    BOOST_TEST(list(folder.path()).empty());
    world().barrier();
  }
  CheckpointReader::open(save(folder.path(), run, world()))->verify(world().rank(), world().size());
}

BOOST_AUTO_TEST_CASE(a_save_folder_that_cannot_be_made_fails_every_rank) {
  const SharedFolder folder;
  Run run;
  run.world_size = world().size();
  if (world().rank() == 0) write_file(folder.path() / "file", "not a folder");
  world().barrier();
  const std::string message = message_of<CollectiveError>([&] { save(folder.path() / "file" / "saves", run, world()); });
  CHECK_CONTAINS(message, "Not a directory");
}
