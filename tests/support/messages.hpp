// Helpers to check the messages of exceptions.
#pragma once

#include <string>

#include <boost/test/unit_test.hpp>

#include "base/error.hpp"

namespace fsdp::test {

/// Returns the message of the Error that `call` throws; fails the test if it throws none.
template <class Error = UserError, class Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  BOOST_ERROR("nothing was thrown");
  return "";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace fsdp::test

/// Checks that `text` contains `part`; prints both if it does not.
#define CHECK_CONTAINS(text, part) \
  BOOST_CHECK_MESSAGE(fsdp::test::contains(text, part), "'" << (text) << "' lacks '" << (part) << "'")
