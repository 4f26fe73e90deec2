// Checks that pages of docs/ contain the code of the files that they name.
#pragma once

#include <filesystem>
#include <string>

#include <boost/test/unit_test.hpp>

#include "support/files.hpp"

namespace fsdp::test {

/// Checks that the page has `count` code blocks. The line before a block ends with the name of the file that contains
/// it.
inline void check_code_of(const std::string& page, std::size_t count) {
  const std::filesystem::path root = std::filesystem::path(FSDP_TEST_DATA).parent_path().parent_path();
  const std::string document = read_file(root / "docs" / page), begin = ":\n\n```cpp\n";
  std::size_t blocks = 0;
  for (std::size_t at = document.find(begin); at != std::string::npos; at = document.find(begin, at + 1), ++blocks) {
    const std::size_t end = document.rfind('`', at), name = document.rfind('`', end - 1) + 1, code = at + begin.size();
    const std::string file = read_file(root / document.substr(name, end - name));
    const std::string block = document.substr(code, document.find("```", code) - code);
    BOOST_TEST(file.find(block) != std::string::npos, block << " is not in " << document.substr(name, end - name));
  }
  BOOST_TEST(blocks == count);
}

}  // namespace fsdp::test
