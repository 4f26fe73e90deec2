// The order of shuffled sequences is a permutation, which differs for every seed and pass, and looks random.
#include <boost/test/unit_test.hpp>

#include <set>
#include <vector>

#include "data/permutation.hpp"

using fsdp::permuted;

BOOST_AUTO_TEST_CASE(every_sequence_once) {
  for (std::uint64_t n : {1u, 2u, 3u, 4u, 5u, 16u, 17u, 255u, 256u, 257u, 1000u}) {
    std::vector<int> seen(n);
    for (std::uint64_t i = 0; i < n; ++i) {
      const std::uint64_t image = permuted(i, n, 3, 1);
      BOOST_TEST_REQUIRE(image < n);
      ++seen[image];
    }
    for (int count : seen) BOOST_TEST(count == 1);
  }
}

BOOST_AUTO_TEST_CASE(seeds_and_passes_differ) {
  const std::uint64_t n = 1000;
  int same_seed = 0, same_pass = 0, fixed = 0, neighbours = 0;
  for (std::uint64_t i = 0; i < n; ++i) {
    same_seed += permuted(i, n, 1, 0) == permuted(i, n, 2, 0);
    same_pass += permuted(i, n, 1, 0) == permuted(i, n, 1, 1);
    fixed += permuted(i, n, 1, 0) == i;
    if (i + 1 < n) neighbours += permuted(i, n, 1, 0) + 1 == permuted(i + 1, n, 1, 0);
  }
  // Each is about 1 for random permutations; 10 has a probability of 1e-7.
  for (int count : {same_seed, same_pass, fixed, neighbours}) BOOST_TEST(count < 10);
}

BOOST_AUTO_TEST_CASE(large_data_is_reached_at_once) {
  const std::uint64_t n = (std::uint64_t{1} << 45) + 12345;
  std::set<std::uint64_t> images;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    images.insert(permuted(n - 1 - i, n, 7, 0));
    BOOST_TEST(*images.rbegin() < n);
  }
  BOOST_TEST(images.size() == 1000u);
}
