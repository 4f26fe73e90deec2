// Consolidation in constant memory: the program's peak for a model of 600 MB (1.8 GB with the optimizer's state) is that for a
// small one, with both formats.
#include <boost/test/unit_test.hpp>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint/support.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// Saves in a child process, because this process's own peak would count as the peak of the programs that it starts.
void save_elsewhere(const std::filesystem::path& save_dir, const Run& run) {
  const pid_t child = fork();
  if (child == 0) {
    save(save_dir, run);
    _exit(0);
  }
  int status = 0;
  BOOST_REQUIRE(waitpid(child, &status, 0) == child);
  BOOST_REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/// Returns the program's peak memory in bytes.
std::size_t peak_of(std::vector<std::string> arguments) {
  const auto& suite = boost::unit_test::framework::master_test_suite();
  BOOST_REQUIRE_MESSAGE(suite.argc > 1, "needs the path of fsdp-consolidate");
  arguments.insert(arguments.begin(), suite.argv[suite.argc - 1]);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    execv(argv[0], argv.data());
    _exit(127);
  }
  int status = 0;
  rusage usage{};
  BOOST_REQUIRE(wait4(child, &status, 0, &usage) == child);
  BOOST_REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return static_cast<std::size_t>(usage.ru_maxrss) * 1024;
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_peak_does_not_grow_with_the_model) {
  const TemporaryFolder folder;
  Run small;
  small.world_size = 3;
  save_elsewhere(folder / "small", small);
  Run large = small;
  large.config.width = 768;
  large.config.heads = large.config.kv_heads = 12;
  large.config.head_size = 64;
  large.config.ffn_width = 3072;
  large.config.vocab_size = 160003;
  large.config.layers = 3;
  const std::size_t bytes = parameter_count(large.config) * 4;
  BOOST_REQUIRE(bytes > 512 * 1024 * 1024);
  save_elsewhere(folder / "large", large);
  const auto peak = [&](const std::string& name, const std::string& format) {
    return peak_of(
        {(folder / name).string(), (folder / (name + format)).string(), "--format", format, "--with-optimizer", "--verify"});
  };
  for (const std::string& format : {std::string("hdf5"), std::string("safetensors")}) {
    const std::size_t base = peak("small", format), all = peak("large", format);
    BOOST_TEST_MESSAGE(format << ": peak " << base << " bytes for a small model, " << all << " for one of " << bytes);
    BOOST_TEST(all < base + 64'000'000);  // three pieces of 16 MiB
    BOOST_TEST(all < 128 * 1024 * 1024);
  }
}
