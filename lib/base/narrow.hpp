// Integer conversions that throw instead of losing bits (MPI and oneDNN count in int and int64).
#pragma once

#include <type_traits>
#include <utility>

#include "base/error.hpp"

namespace fsdp {

template <class To, class From>
constexpr To narrow(From value) {
  static_assert(std::is_integral_v<To> && std::is_integral_v<From>);
  expect(std::in_range<To>(value), "an integer does not fit its new type");
  return static_cast<To>(value);
}

}  // namespace fsdp
