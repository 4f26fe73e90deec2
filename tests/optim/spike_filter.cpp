// Which updates are spikes: the mean and variance that they are compared with, and the effect of a lasting rise.
#include <boost/test/unit_test.hpp>

#include <cmath>

#include "optim/spike_filter.hpp"

using namespace fsdp;

namespace {

/// Adds 2 and 4 alternately: mean 3, variance 1.
void feed(SpikeFilter& filter, std::uint64_t updates) {
  for (std::uint64_t u = 0; u < updates; ++u) filter.update(u % 2 == 0 ? 2 : 4, 10);
}

}  // namespace

BOOST_AUTO_TEST_CASE(nothing_is_left_out_before_enough_has_been_seen) {
  SpikeFilter filter(6);
  feed(filter, SpikeFilter::warmup - 1);
  BOOST_TEST(std::isinf(filter.limits().loss));
  BOOST_TEST(std::isinf(filter.limits().norm));
  filter.update(4, 10);
  BOOST_TEST(filter.state().updates == SpikeFilter::warmup);
  BOOST_TEST(std::abs(filter.limits().loss - 9) < 1e-12);  // from the plain mean and variance of all values so far
  BOOST_TEST(std::abs(filter.limits().norm - 10) < 1e-12);
}

BOOST_AUTO_TEST_CASE(a_spike_counts_as_its_limit) {
  SpikeFilter filter(6);
  feed(filter, 64);
  filter.update(1e30, 10);
  const double after = filter.limits().loss;
  BOOST_TEST(after > 9);
  BOOST_TEST(after < 13);
}

BOOST_AUTO_TEST_CASE(what_stays_high_becomes_usual) {
  SpikeFilter filter(6);
  feed(filter, 200);
  int left_out = 0;
  while (filter.limits().loss < 30 && left_out < 1000) filter.update(30, 10), ++left_out;
  BOOST_TEST(left_out > 1);
  BOOST_TEST(left_out < 64);
}

BOOST_AUTO_TEST_CASE(a_restored_filter_goes_on_the_same) {
  SpikeFilter whole(4), resumed(4);
  feed(whole, 77);
  resumed.restore(whole.state());
  feed(whole, 99), feed(resumed, 99);
  BOOST_CHECK(whole.state() == resumed.state());
}
