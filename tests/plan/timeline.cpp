// The output of --dry-run for a plan: its operations as a table and as a drawing.
#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include <boost/test/unit_test.hpp>

#include "nn/transformer.hpp"
#include "plan/timeline.hpp"

using namespace fsdp;

namespace {

struct Drawn {
  std::string operations, timeline, picture;  // picture: the timeline without the rule above it
};

/// On 4 ranks, groups of 2. The root has three quarters of a block's parameters.
Drawn draw(const char* strategy, std::size_t layers, PlanOptions options, std::size_t columns = 120) {
  TransformerConfig config;
  config.vocab_size = 62, config.max_positions = 8, config.width = 12, config.layers = layers;
  config.heads = config.kv_heads = 3, config.head_size = 4, config.ffn_width = 20;
  const Transformer model(config);
  const Placement& row = find_placement(strategy);
  const Layout layout(model.parameters(), wrap_parameters(model.parameters(), {}, {}), mesh_shape(row, 4, 2).shard);
  const Plan plan = build_plan(layout, row, model.sizes({2, 8}), options);
  const std::string timeline = draw_timeline(plan.update, layout, layout.units()[1].numel, columns);
  return {describe_operations(plan, plan.update, layout), timeline, timeline.substr(timeline.find("\n\n") + 2)};
}

std::size_t longest_line(const std::string& text) {
  std::size_t longest = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) longest = std::max(longest, line.size());
  return longest;
}

std::size_t lines_of(const std::string& text) { return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')); }

std::size_t times(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

}  // namespace

BOOST_AUTO_TEST_CASE(three_blocks_in_two_slots) {
  // By hand: a gather waits for the release of its slot (G2 for F0, G0 for B2), a computation for its gather, a reduction for
  // its gradient, B0 also for the reduction that empties its gradient slot; a block's transfer is as long as its forward pass.
  const Drawn drawn = draw("full", 3, {});
  BOOST_TEST(drawn.picture ==
             "gather   [G][G0][G1][G2][G1]            [G0]\n"
             "compute     [E ][F0][F1][F2][H ][B2    ][B1    ][B0    ][E ]       [O][O][O][O]\n"
             "reduce                                  [R2]    [R1]    [R0][R][N ]\n");
  BOOST_TEST(drawn.timeline.find("the forward pass of a\nblock takes 4 columns, its backward pass 8") != std::string::npos);
  BOOST_TEST(drawn.timeline.find("1.18 k parameters") != std::string::npos);
  // With one slot nothing is prefetched.
  BOOST_TEST(draw("full", 2, {.parameter_slots = 1}).picture ==
             "gather   [G][G0]    [G1]                [G0]\n"
             "compute     [E ][F0]    [F1][H ][B1    ]    [B0    ][E ]       [O][O][O]\n"
             "reduce                                  [R1]        [R0][R][N ]\n");
}

BOOST_AUTO_TEST_CASE(recomputation_and_other_strategies) {
  BOOST_TEST(draw("grad-op", 2, {.checkpoint_activations = true}).picture ==
             "gather   [G][G0][G1]\n"
             "compute     [E ][F0][F1][H ][B1    ][f0][B0    ][E ]       [O][O][O]\n"
             "reduce                              [R1]        [R0][R][N ]\n");
  BOOST_TEST(draw("none", 2, {}).picture ==
             "gather\n"
             "compute  [E ][F0][F1][H ][B1    ][B0    ][E ]              [O][O][O]\n"
             "reduce                           [A1    ][A0    ][Aroo][N ]\n");
}

BOOST_AUTO_TEST_CASE(long_lines_go_on_below) {
  for (const std::size_t layers : {3u, 12u, 101u})
    for (const std::size_t columns : {60u, 120u}) {
      const Drawn whole = draw("full", layers, {}, 100000), bands = draw("full", layers, {}, columns);
      BOOST_TEST(longest_line(bands.picture) <= columns);
      BOOST_TEST(longest_line(bands.timeline.substr(0, bands.timeline.find("\n\n"))) <= 120u);
      BOOST_TEST(lines_of(whole.picture) == 3u);
      const auto boxes = [](const std::string& text, const std::string& stream) {  // computations, which are not cut at the end
                                                                                   // of a line
        std::vector<std::string> all;
        std::istringstream lines(text);
        for (std::string line; std::getline(lines, line);)
          if (line.starts_with(stream))
            for (std::size_t at = line.find('['); at != std::string::npos; at = line.find('[', at + 1))
              all.push_back(line.substr(at, line.find(']', at) + 1 - at));
        return all;
      };
      BOOST_TEST(boxes(whole.picture, "compute").size() == 3 * layers + 4);
      BOOST_TEST(boxes(bands.picture, "compute") == boxes(whole.picture, "compute"), boost::test_tools::per_element());
      if (layers == 101) BOOST_TEST(whole.picture.find("[F100]") != std::string::npos);
    }
}

BOOST_AUTO_TEST_CASE(operations_of_equal_blocks_are_shown_once) {
  // By hand: with one slot, each block is gathered, computed and released before the next one.
  const Drawn one = draw("full", 32, {.parameter_slots = 1});
  BOOST_TEST(times(one.operations, "forward block 3\n") == 0u);
  BOOST_TEST(times(one.operations, " are like ") == 3u, one.operations);  // forward, backward, optimizer
  // The length does not grow with the number of blocks, and few blocks are all shown.
  for (const char* strategy : {"full", "grad-op", "optim", "none", "hybrid"})
    for (const bool recomputes : {false, true})
      for (const std::size_t micro_batches : {1, 3}) {
        const PlanOptions options = {.micro_batches = micro_batches, .checkpoint_activations = recomputes};
        const Drawn many = draw(strategy, 100, options);
        BOOST_TEST(lines_of(many.operations) == lines_of(draw(strategy, 30, options).operations));
        BOOST_TEST(lines_of(many.operations) < 110 * micro_batches, many.operations);
        BOOST_TEST(times(draw(strategy, 3, options).operations, " are like ") == 0u);
      }
}

BOOST_AUTO_TEST_CASE(the_middle_micro_batches_are_left_out) {
  const Drawn three = draw("hybrid", 2, {.micro_batches = 3});
  BOOST_TEST(times(three.picture, "[H ]") == 3u);
  BOOST_TEST(times(three.operations, "  micro-batch ") == 3u);
  BOOST_TEST(times(three.operations + three.picture, "(micro-batches") == 0u);
  const Drawn six = draw("hybrid", 2, {.micro_batches = 6}, 90);
  BOOST_TEST(six.picture ==
             "gather   [G][G0][G1][G0]    [G]             [G0][G1]    [G0]    [G]             [G0]\n"
             "compute     [E ][F0][F1][H ][B1    ][B0    ][E ][E ][F0][F1][H ][B1    ][B0    ][E ]\n"
             "reduce                              [R1]    [R0][R]                     [R1]    [R0]\n"
             "\n(micro-batches 2 to 4 are like micro-batch 1)\n\n"
             "gather   [G1]    [G0]\n"
             "compute  [E ][F0][F1][H ][B1    ][B0    ][E ]              [O][O][O]\n"
             "reduce   [R]                     [R1][A1][R0][A0][R][A][N ]\n");
  BOOST_TEST(times(six.operations, "head and loss") == 3u);
  BOOST_TEST(times(six.operations, "  micro-batch 5\n") == 1u);
  BOOST_TEST(times(six.operations, "  (micro-batches 2 to 4 are like micro-batch 1)\n") == 1u);
  // The length of the output does not grow with the number of micro-batches.
  const Drawn thousand = draw("full", 2, {.micro_batches = 1000});
  BOOST_TEST(lines_of(thousand.operations) == lines_of(draw("full", 2, {.micro_batches = 4}).operations));
  BOOST_TEST(lines_of(thousand.timeline) < 20u);
}
