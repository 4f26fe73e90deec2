// The predictions of published measurements, which docs/simulator.md reports, must not get worse unseen.
#include <cmath>

#include <boost/test/unit_test.hpp>

#include "files/input_file.hpp"
#include "simulator/page.hpp"

using namespace fsdp;
using namespace fsdp::simulator;

namespace {

const GpuFigures& gpu_named(std::string_view name) { return *std::ranges::find(known_gpus(), name, &GpuFigures::name); }

bool rounds_to(double exact, double rounded) { return std::abs(exact - rounded) <= 0.0005 + 1e-12; }

}  // namespace

BOOST_AUTO_TEST_CASE(errors_stay_small_and_the_page_has_them) {
  const std::vector<Row> rows = read_rows(FSDP_SIMULATOR_ROWS);
  const Report report{rows, predict_all(rows)};
  for (const RowSetIndex set : {of_llm_foundry, of_others, of_vtrain, of_holdout}) {
    const Errors errors = errors_of(report.predictions, row_sets[set].has);
    BOOST_TEST(errors.count >= 18u);
    BOOST_TEST(errors.mean < (set == of_holdout ? 12 : 6), row_sets[set].name << ": " << errors.mean << " %");
  }
  for (const Prediction& prediction : report.predictions)
    if (prediction.row->exception.empty())
      BOOST_TEST(std::abs(prediction.error()) < 0.20, prediction.row->id << ": " << 100 * prediction.error() << " %");
  const std::string page = read_text_file(FSDP_SIMULATOR_PAGE);
  for (const char* const name : {"summary", "errors", "fitted", "fsdp", "ten", "sources", "worst", "scaling", "excluded",
                                 "gpus", "networks", "programs", "attention"})
    BOOST_TEST(page.find(table_of(name, report)) != std::string::npos,
               "the table '" << name << "' of docs/simulator.md is out of date; run tools/validate-simulator");
}

// A new fit gives the constants, which are rounded to four digits, and the library has them.
BOOST_AUTO_TEST_CASE(the_library_has_the_fitted_constants) {
  const std::vector<Row> rows = read_rows(FSDP_SIMULATOR_ROWS);
  const std::vector<const Row*> ten = rows_to_fit(rows);
  BOOST_TEST(ten.size() == 10u);
  const Constants again = fit(ten, start_of_fit, all_constants());
  for (std::size_t i = 0; i < constant_count; ++i)
    BOOST_TEST(std::abs(again[i] / fitted[i] - 1) < 5e-4, constant_names[i] << ": " << again[i]);
  BOOST_TEST(rounds_to(fitted[products_cu12], gpu_named("a100").product_share));
  BOOST_TEST(rounds_to(fitted[products_hopper], gpu_named("h100").product_share));
  BOOST_TEST(rounds_to(fitted[products_hopper], gpu_named("h200").product_share));
  const Transformer model(arch_config("gpt2"));
  BOOST_TEST(rounds_to(fitted[interference], rates_of(gpu_named("h100"), model, DType::bf16, {}).interference));
}
