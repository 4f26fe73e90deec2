// Which parameters form a unit: policies over the module tree, patterns, frozen and ignored parameters.
#include <algorithm>
#include <map>

#include <boost/test/unit_test.hpp>

#include "base/error.hpp"
#include "nn/config.hpp"
#include "plan/wrap.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;
using Kind = WrapPolicy::Kind;

namespace {

std::vector<Parameter> gpt2(std::size_t layers) {
  ConfigOverrides overrides;
  overrides.layers = layers;
  return list_parameters(override_config(arch_config("gpt2"), overrides)).parameters;
}

std::vector<std::string> names(const std::vector<UnitSpec>& units) {
  std::vector<std::string> all;
  for (const UnitSpec& unit : units) all.push_back(unit.name);
  return all;
}

using Names = std::vector<std::string>;

}  // namespace

BOOST_AUTO_TEST_CASE(blocks_in_groups) {
  BOOST_CHECK((names(wrap_parameters(gpt2(3), {})) == Names{"root", "block 0", "block 1", "block 2"}));
  BOOST_CHECK((names(wrap_parameters(gpt2(3), {2})) == Names{"root", "blocks 0-1", "block 2"}));
  BOOST_CHECK((names(wrap_parameters(gpt2(3), {.kind = Kind::none})) == Names{"root"}));
}

BOOST_AUTO_TEST_CASE(sizes_as_pytorch_wraps_them) {
  // These are the units of torch's _recursive_wrap with size_based_auto_wrap_policy for transformers' GPT-2 of two layers
  // (2.15; torch wraps the tied lm_head a second time): 7,087,872 parameters in a block, 38,597,376 in wte, 786,432 in wpe.
  const auto units = [](std::size_t least) {
    Names all = names(wrap_parameters(gpt2(2), {.kind = Kind::size, .min_num_params = least}));
    std::erase(all, "root");
    std::sort(all.begin(), all.end());
    return all;
  };
  BOOST_CHECK((units(100'000'000) == Names{}));
  BOOST_CHECK((units(30'000'000) == Names{"transformer.wte"}));
  BOOST_CHECK((units(10'000'000) == Names{"transformer", "transformer.wte"}));
  BOOST_CHECK((units(5'000'000) == Names{"transformer.h.0", "transformer.h.1", "transformer.wte"}));
  BOOST_CHECK((units(3'000'000) == Names{"transformer", "transformer.h.0.mlp", "transformer.h.1.mlp", "transformer.wte"}));
  BOOST_CHECK((units(2'000'000) == Names{"transformer.h.0.attn", "transformer.h.0.mlp.c_fc", "transformer.h.0.mlp.c_proj",
                                         "transformer.h.1.attn", "transformer.h.1.mlp.c_fc", "transformer.h.1.mlp.c_proj",
                                         "transformer.wte"}));
}

BOOST_AUTO_TEST_CASE(one_giant_unit_is_warned_of) {
  std::vector<std::string> warnings;
  wrap_parameters(gpt2(2), {.kind = Kind::size, .min_num_params = 1'000'000'000}, {}, &warnings);
  BOOST_TEST_REQUIRE(warnings.size() == 1u);
  CHECK_CONTAINS(warnings[0], "lower `least parameters of a unit`");
  warnings.clear();
  wrap_parameters(gpt2(12), {.kind = Kind::size, .min_num_params = 5'000'000}, {}, &warnings);
  BOOST_TEST(warnings.empty());
}

BOOST_AUTO_TEST_CASE(patterns_over_modules) {
  const auto units = [](std::vector<std::string> patterns) {
    return wrap_parameters(gpt2(4), {.kind = Kind::custom, .patterns = std::move(patterns)});
  };
  const auto two = units({"h.[01]", "transformer.h.[2-3]"});
  BOOST_CHECK((names(two) == Names{"root", "h.[01]", "transformer.h.[2-3]"}));
  BOOST_TEST(two[1].parameters.size() == 24u);
  BOOST_TEST(units({"*.mlp"})[1].parameters.size() == 16u);
  CHECK_CONTAINS(message_of([&] { units({"h.0", "h.0.mlp"}); }), "overlap (both match transformer.h.0.mlp.c_fc.weight)");
  CHECK_CONTAINS(message_of([&] { units({"layers.0"}); }),
                 "'layers.0' matches no module with parameters (this model has transformer, ");
  const auto by_predicate = wrap_parameters(
      gpt2(4), {.kind = Kind::custom, .unit_of = [](const Parameter& p) { return p.block == 2 ? "third" : ""; }});
  BOOST_CHECK((names(by_predicate) == Names{"root", "third"}));
}

BOOST_AUTO_TEST_CASE(frozen_and_ignored_parameters_have_units_of_their_own) {
  const auto units =
      wrap_parameters(gpt2(2), {}, {.freeze = {"*.1.*bias", "wte*"}, .ignore = {"*ln_*", "transformer.wpe.weight"}});
  BOOST_CHECK((names(units) == Names{"root, frozen", "root, ignored", "block 0", "block 0, ignored", "block 1",
                                     "block 1, frozen", "block 1, ignored", "block 1, frozen, ignored"}));
  std::map<std::size_t, int> seen;
  for (const UnitSpec& unit : units)
    for (const std::size_t p : unit.parameters) ++seen[p];
  BOOST_TEST(seen.size() == gpt2(2).size());
  for (const auto& [p, count] : seen) BOOST_TEST(count == 1);
  const auto only = wrap_parameters(gpt2(2), {}, {.freeze = {"*bias"}, .train_only = {"h.1.*"}});
  BOOST_CHECK((names(only) == Names{"root, frozen", "block 0, frozen", "block 1", "block 1, frozen"}));
  CHECK_CONTAINS(message_of([] { wrap_parameters(gpt2(2), {}, {.freeze = {"*"}}); }), "every parameter is frozen");
  CHECK_CONTAINS(message_of([] { wrap_parameters(gpt2(2), {}, {.train_only = {"h.7.*"}}); }),
                 "`trained parameters` 'h.7.*' matches no parameter");
  CHECK_CONTAINS(message_of([] { wrap_parameters(gpt2(2), {}, {.ignore = {"head"}}); }), "`ignored parameters` 'head'");
}

BOOST_AUTO_TEST_CASE(a_tied_head_is_named_as_the_table) {
  const std::string is_table = "lm_head.weight is the same tensor as transformer.wte.weight (tie_word_embeddings)";
  for (const char* pattern : {"lm_head.weight", "lm_head", "lm_head.*", "lm_*"}) {
    CHECK_CONTAINS(message_of([&] { wrap_parameters(gpt2(2), {}, {.train_only = {pattern}}); }), is_table);
    CHECK_CONTAINS(message_of([&] { wrap_parameters(gpt2(2), {}, {.freeze = {"wpe*", pattern}}); }), is_table);
    CHECK_CONTAINS(message_of([&] { wrap_parameters(gpt2(2), {}, {.ignore = {pattern}}); }), is_table);
    CHECK_CONTAINS(message_of([&] { wrap_parameters(gpt2(2), {.kind = Kind::custom, .patterns = {pattern}}); }), is_table);
  }
  for (const char* arch : {"llama-3.2-1b", "qwen3-0.6b", "opt-125m", "transformer_lm_gpt"}) {
    ConfigOverrides overrides;
    overrides.layers = 1;
    overrides.tied_embeddings = true;
    const auto parameters = list_parameters(override_config(arch_config(arch), overrides)).parameters;
    CHECK_CONTAINS(message_of([&] { wrap_parameters(parameters, {}, {.train_only = {"lm_head.weight"}}); }),
                   "is the same tensor as " + parameters.front().name + " (tie_word_embeddings)");
    overrides.tied_embeddings = false;
    wrap_parameters(list_parameters(override_config(arch_config(arch), overrides)).parameters, {}, {.train_only = {"lm_*"}});
  }
}

BOOST_AUTO_TEST_CASE(globs_cross_dots_and_leave_out_the_models_name) {
  BOOST_TEST(matches("*", "a.b.c"));
  BOOST_TEST(matches("h.*.weight", "transformer.h.0.ln_1.weight"));
  BOOST_TEST(matches("layers.[0-3].*", "model.layers.2.mlp.up_proj.weight"));
  BOOST_TEST(!matches("layers.[0-3].*", "model.layers.4.mlp.up_proj.weight"));
  BOOST_TEST(!matches("ln_1", "transformer.h.0.ln_1"));
}
