// The figure of what fsdp-bench tuning prints.
#include "fsdp-report/tuning_figure.hpp"

#include <set>

#include <boost/test/unit_test.hpp>

#include "report/svg_reader.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

const std::string heading =
    "# gpt2, 2 ranks, fp32, sequences of 16 tokens, 1 micro-batch per update; a rank may use 145 MiB\n"
    "# strategy      recompute batch-size   tokens/s         ms        MiB\n";
const std::string rows =
    "full                   no          1        175      182.5        125\n"
    "full                   no          2          -          -        147  does not fit\n"
    "full                  yes          4        584      219.0        134\n"
    "none                   no          1          -          -        149  does not fit\n"
    "the fastest that fits: --sharding-strategy full --batch-size 4 --checkpoint-activations\n";

std::vector<TuningPoint> read_back(const std::string& text) {
  const TemporaryFolder folder;
  write_file(folder / "tuning.txt", text);
  return read_tuning(folder / "tuning.txt");
}

Picture checked(const std::vector<TuningPoint>& points) {
  const Figure figure = draw_tuning(points);
  Picture picture = read_svg(figure.svg.file(figure.height));
  BOOST_TEST(faults_of(picture) == "");
  return picture;
}

}  // namespace

BOOST_AUTO_TEST_CASE(points_are_where_the_table_says) {
  const Picture picture = checked(read_back(heading + rows));
  const SvgElement kept = picture.one("circle", "full, batch size 1: 175 tokens/s, 125 MiB");
  const SvgElement recomputed = picture.one("circle", "full, recomputing, batch size 4: 584 tokens/s, 134 MiB");
  // The scales come from the labels of the axes; those of speed are 4 pixels below their lines.
  const auto label = [&](const char* text) {
    return picture.all("text", [&](const SvgElement& one) { return one.text == text; }).at(0);
  };
  const double zero = label("0").number("y") - 4, per_token = (zero - label("400").number("y") + 4) / 400;
  BOOST_TEST(std::abs((zero - kept.number("cy")) / per_token - 175) < 0.2 / per_token);
  BOOST_TEST(std::abs((zero - recomputed.number("cy")) / per_token - 584) < 0.2 / per_token);
  const double per_mib = (label("134").number("x") - label("126").number("x")) / 8;
  BOOST_TEST(std::abs((kept.number("cx") - label("126").number("x")) / per_mib + 1) < 0.2 / per_mib);
  BOOST_TEST(std::abs(recomputed.number("cx") - label("134").number("x")) < 0.11);
  // A strategy has a colour; with recomputation its points are hollow.
  BOOST_TEST(kept.attribute("fill") == kept.attribute("stroke"));
  BOOST_TEST(recomputed.attribute("fill") == "#fff");
  BOOST_TEST(recomputed.attribute("stroke") == kept.attribute("stroke"));
  for (const char* text : {"full", "full, recomputing", "1", "4"}) BOOST_TEST(picture.says(text) == 1u, text);
  BOOST_TEST(picture.says("none") == 0u);  // nothing was measured
}

BOOST_AUTO_TEST_CASE(labels_of_many_points_do_not_overlap) {
  std::string many = heading;
  for (const char* strategy : {"full", "grad-op", "optim", "none", "hybrid", "hybrid-grad-op"})
    for (const int batch : {1, 2, 16, 1024})
      for (const char* recompute : {"no", "yes"})
        many += format("{} {} {} {} 1.0 {}\n", strategy, recompute, batch, 1000 + batch % 7, 4000 + batch % 5);
  const auto points = read_back(many);
  BOOST_TEST(points.size() == 48u);
  const Picture picture = checked(points);
  std::set<std::string> colours;
  for (const SvgElement& circle : picture.all("circle", "")) colours.insert(circle.attribute("stroke"));
  BOOST_TEST(colours.size() == 6u);
  BOOST_TEST(picture.says("1024") >= 1u);  // where there is room
  // One point, a name that is too long, and the largest numbers.
  checked(read_back(heading + "full no 1 1 1 1\n"));
  checked(read_back(heading + std::string(300, 'x') + " yes 999999999999 999999999999 1 999999999999\n"));
}

BOOST_AUTO_TEST_CASE(files_without_settings_are_refused) {
  CHECK_CONTAINS(message_of([&] { read_back("a text"); }), "has no table of settings");
  CHECK_CONTAINS(message_of([&] { read_back("{\"arch\": \"gpt2\"}"); }), "as text");
  CHECK_CONTAINS(message_of([&] { read_back(heading + "none no 1 - - 149  does not fit\n"); }), "no setting that was measured");
  CHECK_CONTAINS(message_of([&] { read_back(heading + "full no 1 nan 1.0 inf\n"); }), "no setting that was measured");
  CHECK_CONTAINS(message_of([&] { read_tuning("/none"); }), "No such file");
}
