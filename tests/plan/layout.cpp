// The layout: every element of every parameter is in exactly one shard, aligned, for any number of shards.
#include <boost/test/unit_test.hpp>

#include "base/error.hpp"
#include "plan/layout.hpp"
#include "plan/placement.hpp"

using namespace fsdp;

namespace {
/// An embedding, blocks of three tensors of odd sizes, and a final norm; one block is smaller than the number of shards.
std::vector<Parameter> some_parameters(int blocks) {
  std::vector<Parameter> all = {{"embed", {7, 5}, {}, true, -1}};
  for (int b = 0; b < blocks; ++b) {
    all.push_back({"w" + std::to_string(b), {5, 11}, {}, true, b});
    all.push_back({"b" + std::to_string(b), {11}, {}, false, b});
    all.push_back({"s" + std::to_string(b), {1}, {}, false, b});
  }
  all.push_back({"norm", {5}, {}, false, -1});
  return all;
}
}  // namespace

BOOST_AUTO_TEST_CASE(every_element_lies_in_one_shard) {
  for (int shards : {1, 2, 3, 4, 5, 64})
    for (std::size_t per_unit : {1u, 2u, 5u}) {
      const auto parameters = some_parameters(5);
      const Layout layout(parameters, wrap_parameters(parameters, {per_unit}), shards);
      BOOST_TEST(layout.units().size() == 1 + (5 + per_unit - 1) / per_unit);
      std::vector<std::vector<int>> seen;
      for (const Parameter& p : parameters) seen.emplace_back(numel(p.shape), 0);
      for (std::size_t u = 0; u < layout.units().size(); ++u) {
        BOOST_TEST(layout.shard_numel(u) % flat_alignment == 0u);
        for (int s = 0; s < shards; ++s)
          for (const Slice& slice : layout.slices(u, s)) {
            BOOST_TEST(slice.shard_offset + slice.range.size() <= layout.shard_numel(u));
            for (std::size_t i = slice.range.begin; i < slice.range.end; ++i) ++seen[slice.parameter][i];
          }
      }
      for (const auto& counts : seen)
        for (int count : counts) BOOST_TEST(count == 1);
    }
}

BOOST_AUTO_TEST_CASE(a_slice_lies_where_the_flat_buffer_says) {
  const auto parameters = some_parameters(3);
  const Layout layout(parameters, wrap_parameters(parameters, {}), 3);
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    const Unit& unit = layout.units()[u];
    std::size_t covered = unit.numel;
    for (const Range& gap : unit.gaps) covered += gap.size();
    BOOST_TEST(covered == unit.padded_numel);
    for (int s = 0; s < 3; ++s)
      for (const Slice& slice : layout.slices(u, s)) {
        const auto at = std::find(unit.parameters.begin(), unit.parameters.end(), slice.parameter) - unit.parameters.begin();
        const std::size_t flat = unit.offsets[static_cast<std::size_t>(at)] + slice.range.begin;
        BOOST_TEST(flat == static_cast<std::size_t>(s) * layout.shard_numel(u) + slice.shard_offset);
        BOOST_TEST(unit.offsets[static_cast<std::size_t>(at)] % flat_alignment == 0u);
      }
  }
}

BOOST_AUTO_TEST_CASE(strategies_are_rows_of_one_table) {
  BOOST_TEST(find_placement("FULL_SHARD").name == "full");
  BOOST_TEST(find_placement("NO_SHARD").name == "none");
  BOOST_CHECK_THROW(find_placement("fulll"), UserError);
  BOOST_TEST(mesh_shape(find_placement("full"), 6).shard == 6);
  BOOST_TEST(mesh_shape(find_placement("none"), 6).replicate == 6);
  BOOST_TEST(find_placement("SHARD_GRAD_OP").name == "grad-op");
  BOOST_TEST(find_placement("HYBRID_SHARD").name == "hybrid");
  BOOST_TEST(find_placement("_HYBRID_SHARD_ZERO2").name == "hybrid-grad-op");
  BOOST_TEST(mesh_shape(find_placement("hybrid"), 6, 3).shard == 3);
  BOOST_TEST(mesh_shape(find_placement("hybrid"), 6, 3).replicate == 2);
  BOOST_CHECK_THROW(mesh_shape(find_placement("hybrid"), 6, 4), UserError);
}
