// Simulates a full disk by limiting the size of files that this process writes.
#pragma once

#include <csignal>

#include <sys/resource.h>

#include <boost/test/unit_test.hpp>

namespace fsdp::test {

/// During its lifetime, a write beyond `bytes` of a file fails with "File too large".
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    BOOST_TEST_REQUIRE(getrlimit(RLIMIT_FSIZE, &before_) == 0);
    const rlimit limit{bytes, before_.rlim_max};
    BOOST_TEST_REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  ~FileSizeLimit() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

}  // namespace fsdp::test
