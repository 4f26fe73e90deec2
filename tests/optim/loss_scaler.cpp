// The loss scale of each update, compared with values by hand.
#include <boost/test/unit_test.hpp>

#include "optim/loss_scaler.hpp"

using namespace fsdp;

BOOST_AUTO_TEST_CASE(it_halves_on_overflow_and_doubles_after_a_window) {
  LossScaler scaler({.init_scale = 1024, .scale_window = 3});
  std::string scales;
  for (const bool finite : {false, false, true, true, true, true, false, true, true, true}) {
    BOOST_TEST(scaler.update(finite));
    scales += std::to_string(static_cast<int>(scaler.scale())) + " ";
  }
  // Doubled with the third update after the last overflow.
  BOOST_TEST(scales == "512 256 256 256 512 512 256 256 256 512 ");
}

BOOST_AUTO_TEST_CASE(some_overflows_are_borne) {
  LossScaler scaler({.init_scale = 64, .scale_window = 1000, .tolerance = 0.25});
  for (int i = 0; i < 7; ++i) BOOST_TEST(scaler.update(true));
  BOOST_TEST(scaler.update(false));  // one of 8 since the start
  BOOST_TEST(scaler.scale() == 64);
  BOOST_TEST(scaler.update(false));  // two of 9: less than a quarter
  BOOST_TEST(scaler.scale() == 64);
  BOOST_TEST(scaler.update(false));
  BOOST_TEST(scaler.scale() == 32);
}

BOOST_AUTO_TEST_CASE(there_is_an_end_and_a_threshold) {
  LossScaler low({.init_scale = 4, .min_scale = 1});
  BOOST_TEST(low.update(false));
  BOOST_TEST(low.scale() == 2);
  BOOST_TEST(!low.update(false));
  BOOST_TEST(low.scale() == 2);
  LossScaler held({.init_scale = 4, .min_scale = 1, .threshold = 2});
  for (int i = 0; i < 9; ++i) BOOST_TEST(held.update(false));
  BOOST_TEST(held.scale() == 2);
}

BOOST_AUTO_TEST_CASE(what_nothing_helps_ends) {
  for (const LossScalerOptions& options : {LossScalerOptions{.threshold = 2}, LossScalerOptions{.tolerance = 1}}) {
    LossScaler scaler(options);
    for (int i = 0; i < 500; ++i) BOOST_TEST(scaler.update(true));
    int overflows = 1;
    while (scaler.update(false)) BOOST_TEST_REQUIRE(++overflows < 1000);
    BOOST_TEST(overflows == 200);
  }
}

BOOST_AUTO_TEST_CASE(it_goes_on_where_it_was) {
  LossScaler whole({.init_scale = 256, .scale_window = 4}), first({.init_scale = 256, .scale_window = 4}),
      second({.init_scale = 1, .scale_window = 4});
  const auto finite = [](int i) { return i % 7 != 3; };
  for (int i = 0; i < 40; ++i) {
    if (i == 17) second.restore(first.state());
    BOOST_TEST(whole.update(finite(i)));
    BOOST_TEST((i < 17 ? first : second).update(finite(i)));
    BOOST_TEST((whole.state() == (i < 17 ? first : second).state()));
  }
}
