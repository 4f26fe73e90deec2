// Known answers of Philox4x32-10 from the authors' Random123 distribution (kat_vectors).
#include <boost/test/unit_test.hpp>

#include "base/philox.hpp"

using Words = std::array<std::uint32_t, 4>;

BOOST_AUTO_TEST_CASE(known_answers) {
  BOOST_CHECK((fsdp::philox({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  BOOST_CHECK((fsdp::philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  BOOST_CHECK((fsdp::philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
               Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}
