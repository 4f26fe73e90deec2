// The rows of a grown vocabulary: old rows keep their bits, new ones are means of old ones, whatever range is read.
#include <boost/test/unit_test.hpp>

#include "checkpoint/grown_model.hpp"
#include "checkpoint/support.hpp"
#include "nn/parameters.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

constexpr std::size_t V = 41, C = 20;
const std::string table = "model.embed_tokens.weight", head = "lm_head.weight";

float value_of(const std::string& name, std::size_t element) {
  return static_cast<float>(name.size() + element * 7 % 101) / 3 - 20;
}

class FormulaSource final : public TensorSource {
 public:
  StoredModel model() const override { return llama_config(); }
  std::vector<std::string> names() const override { return {table, head}; }
  bool has_state(const std::string&, const std::string& name) const override { return name == table || name == head; }
  Shape state_shape(const std::string&, const std::string&) const override { return {V, C}; }
  void read_state(const std::string&, const std::string& name, Range range, float* out) const override {
    BOOST_TEST_REQUIRE(range.end <= V * C);
    for (std::size_t i = range.begin; i < range.end; ++i) out[i - range.begin] = value_of(name, i);
  }
  std::size_t bytes_read() const override { return 0; }
  std::string description() const override { return "formula"; }
};

/// The mean of the elements of column `c` over some rows.
float mean_of(const std::string& name, const std::vector<TokenId>& rows, std::size_t c) {
  double sum = 0;
  for (const TokenId row : rows) sum += static_cast<double>(value_of(name, static_cast<std::size_t>(row) * C + c));
  return static_cast<float>(sum / static_cast<double>(rows.size()));
}

/// Reads a whole tensor in pieces of `step` elements.
std::vector<float> read(const TensorSource& model, const std::string& name, std::size_t step) {
  std::vector<float> all(numel(model.shape(name)));
  for (std::size_t at = 0; at < all.size(); at += step)
    model.read(name, {at, std::min(all.size(), at + step)}, all.data() + at);
  return all;
}

}  // namespace

BOOST_AUTO_TEST_CASE(tables_grow) {
  std::vector<TokenId> known(38);
  for (std::size_t i = 0; i < known.size(); ++i) known[i] = static_cast<TokenId>(i);
  // Rows 38 and 39 are not used before; row 40 is old; 41 and 42 are padding.
  NewRows rows = {.known = 38, .pieces = {{38, {3, 5, 5}}, {39, {}}}, .first_unused = V};
  TransformerConfig config = llama_config();
  config.vocab_size = 43;
  for (const NewTokenInit init : {NewTokenInit::mean_of_pieces, NewTokenInit::mean, NewTokenInit::zeros}) {
    rows.init = init;
    const GrownModel model(std::make_unique<FormulaSource>(), config, rows);
    for (const std::string& name : {table, head}) {
      BOOST_TEST((model.shape(name) == Shape{43, C}));
      const std::vector<float> all = read(model, name, 43 * C);
      for (const std::size_t step : {1, 7, 20, 33}) BOOST_TEST((read(model, name, step) == all));
      for (std::size_t row = 0; row < 43; ++row)
        for (std::size_t c = 0; c < C; ++c) {
          const float expected = row < 38 || row == 40                               ? value_of(name, row * C + c)
                                 : init == NewTokenInit::zeros                       ? 0
                                 : row == 38 && init == NewTokenInit::mean_of_pieces ? mean_of(name, {3, 5, 5}, c)
                                                                                     : mean_of(name, known, c);
          BOOST_REQUIRE_EQUAL(all[row * C + c], expected);
        }
    }
  }
}

BOOST_AUTO_TEST_CASE(adapters_get_the_new_rows) {
  TransformerConfig config =
      with_lora(llama_config(), {.rank = 2, .tokens = {42, 7, 41}, .head_tokens = {41, 42}, .base_vocab = V, .vocab = 43});
  config.validate();
  const GrownModel model(std::make_unique<FormulaSource>(), config,
                         {.known = V, .pieces = {{41, {3}}, {42, {4, 6}}}, .first_unused = V});
  BOOST_TEST((model.shape(table) == Shape{V, C}));
  const std::vector<float> rows = read(model, std::string("model.embed_tokens") + token_rows_suffix, 9),
                           of_head = read(model, std::string("lm_head") + token_rows_suffix, 9);
  BOOST_TEST_REQUIRE(rows.size() == 3 * C);
  for (std::size_t c = 0; c < C; ++c) {
    BOOST_REQUIRE_EQUAL(rows[c], mean_of(table, {4, 6}, c));
    BOOST_REQUIRE_EQUAL(rows[C + c], value_of(table, 7 * C + c));
    BOOST_REQUIRE_EQUAL(of_head[c], value_of(head, 3 * C + c));
  }
  // The stages find each token's row.
  const ModelParameters all = list_parameters(config);
  std::size_t next = 0;
  for (const TableRows& some : all.embedding_rows) {
    BOOST_TEST(some.first == next);
    next += some.count;
  }
  BOOST_TEST(next == 43u);
  BOOST_TEST(all.embedding_rows.size() == 5u);  // 0 to 6, 7, 8 to 40, 41, 42
  BOOST_TEST(all.head_rows.size() == 2u);
  config.lora.head_tokens = {42};
  BOOST_CHECK_THROW(config.validate(), UserError);  // no row for token 41 in the head
}
