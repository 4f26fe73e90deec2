// Every optimizer against PyTorch's run of it, update by update, at 1 to 4 ranks. Options that must not change a bit are
// checked, too.
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include "run/golden_run.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

struct Bound {
  std::string name;
  double loss, norm;           // absolute; relative
  int runs_that_may_flip = 0;  // the number of runs in which rounding may change a sign, and so a whole step of an element
};
/// After such a step.
constexpr double flipped_loss = 3e-4, flipped_norm = 3e-3;

/// The differences in docs/numerics.md, with a margin.
const Bound bounds[] = {{"sgd", 1e-5, 5e-5},     {"sgd-momentum", 5e-6, 1e-5}, {"sgd-nesterov", 1e-5, 5e-5},
                        {"adam", 5e-6, 1e-5},    {"adam-amsgrad", 5e-6, 1e-5}, {"adagrad", 3e-5, 5e-5},
                        {"lion", 5e-6, 1e-5, 4}, {"lamb", 5e-6, 1e-5},         {"adafactor", 5e-6, 1e-5},
                        {"muon", 5e-4, 5e-3}};

std::ostream& operator<<(std::ostream& out, const Bound& bound) { return out << bound.name; }

json run_of(const std::string& name) { return read_json(golden_folder("optimizers.json"))[name]; }

}  // namespace

BOOST_DATA_TEST_CASE(pytorch_is_reproduced, boost::unit_test::data::make(bounds), bound) {
  const json run = run_of(bound.name);
  double loss = 0, norm = 0, flipped = 0;
  int flips = 0;
  for (const int ranks : {1, 2, 3, 4})
    for (const char* strategy : {"full", "none"})
      for (const std::size_t micro_batches : {1u, 3u}) {
        if (12 % (static_cast<std::size_t>(ranks) * micro_batches) != 0) continue;
        const History mine =
            train_golden("gpt2-tied", {.ranks = ranks, .strategy = strategy, .micro_batches = micro_batches, .run = run});
        BOOST_TEST_REQUIRE(mine.losses.size() == 20u);
        double loss_here = 0, norm_here = 0;
        for (std::size_t u = 0; u < mine.losses.size(); ++u) {
          loss_here = std::max(loss_here, std::abs(mine.losses[u] - run["steps"][u]["loss"].get<double>()));
          norm_here = std::max(norm_here, std::abs(mine.norms[u] / run["steps"][u]["gnorm"].get<double>() - 1));
        }
        const bool may_flip = bound.runs_that_may_flip > flips && loss_here < flipped_loss && norm_here < flipped_norm;
        if (may_flip && (loss_here >= bound.loss || norm_here >= bound.norm)) {
          ++flips;
          flipped = std::max(flipped, loss_here);
          continue;
        }
        loss = std::max(loss, loss_here), norm = std::max(norm, norm_here);
      }
  BOOST_TEST_MESSAGE(bound.name << ": loss " << loss << ", norm " << norm << " relative; " << flips
                                << " runs after a sign that was decided by "
                                << "rounding: loss " << flipped);
  BOOST_TEST(loss < bound.loss);
  BOOST_TEST(norm < bound.norm);
}

BOOST_DATA_TEST_CASE(what_must_not_change_a_bit_does_not, boost::unit_test::data::make(bounds), bound) {
  json run = run_of(bound.name);
  run["updates"] = 5;
  for (const DType type : {DType::f32, DType::bf16})
    for (const int ranks : {1, 2, 3, 4}) {
      const History full = train_golden("gpt2-tied", {.ranks = ranks, .run = run, .state_type = type});
      for (const std::string& strategy : strategies)
        BOOST_CHECK_MESSAGE((full == train_golden("gpt2-tied", {.ranks = ranks,
                                                                .strategy = strategy,
                                                                .group = group_for(ranks),
                                                                .run = run,
                                                                .state_type = type,
                                                                .threads = ranks % 2 == 0 ? Threads::communication
                                                                           : ranks == 3   ? Threads::each_stream
                                                                                          : Threads::one})),
                            bound.name << " in " << name_of(type) << ", " << ranks << " ranks, " << strategy);
      BOOST_CHECK_MESSAGE((full == train_golden("gpt2-tied", {.ranks = ranks,
                                                              .wrap = {.kind = WrapPolicy::Kind::none},
                                                              .patterns = {.ignore = {"*.0.*", "*.1.*mlp*", "*ln_f*"}},
                                                              .run = run,
                                                              .state_type = type})),
                          bound.name << " in " << name_of(type) << ", " << ranks << " ranks, some ignored");
    }
}
