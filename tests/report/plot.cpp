// Plots: values are read back from coordinates, no peak of a long curve is lost, and labels lie inside the frame and apart.
#include "report/plot.hpp"

#include <boost/test/unit_test.hpp>

#include <cmath>
#include <random>
#include <sstream>

#include "fsdp-report/text_plot.hpp"
#include "report/svg_reader.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

struct Drawn {
  Picture picture;
  std::map<std::string, std::string> attributes;

  /// The value at a coordinate, by the attributes of the plot, as the script of a page computes it.
  double value_at(double y) const {
    std::istringstream frame(attributes.at("data-frame"));
    double left = 0, top = 0, width = 0, height = 0;
    frame >> left >> top >> width >> height;
    const double part = 1 - (y - top) / height, y0 = std::stod(attributes.at("data-y0")),
                 y1 = std::stod(attributes.at("data-y1"));
    if (attributes.at("data-log") == "1") return y0 * std::pow(y1 / y0, part);
    return y0 + part * (y1 - y0);
  }
  double x_at(double x) const {
    std::istringstream frame(attributes.at("data-frame"));
    double left = 0, top = 0, width = 0;
    frame >> left >> top >> width;
    const double x0 = std::stod(attributes.at("data-x0")), x1 = std::stod(attributes.at("data-x1"));
    if (attributes.at("data-log-x") == "1") return x0 * std::pow(x1 / x0, (x - left) / width);
    return x0 + (x - left) / width * (x1 - x0);
  }
  std::vector<SvgElement> curves() const {
    return picture.all("polyline", [](const SvgElement& element) { return element.attribute("class") == "curve"; });
  }
};

Drawn drawn(const Plot& plot, double width = 560, double height = 270) {
  const auto made = draw(plot, width, height);
  BOOST_TEST_REQUIRE(made.has_value());
  const std::string element = made->svg.element(made->height, plot.title, made->attributes);
  Drawn out{read_svg(element), {}};
  std::string rest = element.substr(0, element.find('>'));
  for (std::size_t at = rest.find("data-"); at != std::string::npos; at = rest.find("data-", at + 1)) {
    const std::size_t equals = rest.find("=\"", at), end = rest.find('"', equals + 2);
    out.attributes[rest.substr(at, equals - at)] = rest.substr(equals + 2, end - equals - 2);
  }
  BOOST_TEST(faults_of(out.picture) == "");
  return out;
}

Curve curve(std::vector<double> x, std::vector<double> y) {
  return {.name = "a curve", .x = std::move(x), .y = std::move(y), .colour = "#000"};
}

}  // namespace

BOOST_AUTO_TEST_CASE(values_are_read_back_from_coordinates) {
  for (const bool logarithmic : {false, true}) {
    const std::vector<double> x = {1, 2, 5, 9}, y = {4, 0.25, 2, 300};
    const Drawn plot = drawn({.title = "t",
                              .x_name = "update",
                              .y_name = "v",
                              .curves = {curve(x, y)},
                              .logarithmic = logarithmic,
                              .logarithmic_x = logarithmic});
    const auto points = plot.curves().at(0).points();
    BOOST_TEST_REQUIRE(points.size() == x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      BOOST_TEST(plot.x_at(points[i].x) == x[i], boost::test_tools::tolerance(0.01));
      if (logarithmic)
        BOOST_TEST(plot.value_at(points[i].y) == y[i], boost::test_tools::tolerance(0.01));
      else
        BOOST_TEST(std::abs(plot.value_at(points[i].y) - y[i]) < 0.2);  // a tenth of a pixel
    }
  }
}

BOOST_AUTO_TEST_CASE(ticks_of_a_logarithmic_x_axis_are_powers_of_two) {
  const auto labels = [](std::vector<double> x) {
    const std::size_t n = x.size();
    const Drawn plot = drawn({.title = "",
                              .x_name = "",
                              .y_name = "",
                              .curves = {curve(std::move(x), std::vector<double>(n, 3))},
                              .logarithmic_x = true});
    std::vector<std::string> all;
    for (const SvgElement& text : plot.picture.all("text", [](const SvgElement& element) {
           return element.attribute("text-anchor") == "middle" && element.attribute("transform").empty();
         }))
      all.push_back(text.text);
    return format("{}", fmt::join(all, " "));
  };
  BOOST_TEST(labels({1, 2, 4, 8}) == "1 2 4 8");
  BOOST_TEST(labels({2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096}) == "2 8 32 128 512 2048");
  BOOST_TEST(labels({6, 24}) == "8 16");
  BOOST_TEST(labels({1, 1 << 20}) == "1 8 64 512 4096 32.768 k 262.144 k");
  BOOST_TEST(!labels({6}).empty());  // no power of two is near
}

BOOST_AUTO_TEST_CASE(no_peak_of_a_long_curve_is_lost) {
  std::vector<double> x, y;
  for (int i = 0; i < 100'000; ++i) x.push_back(i), y.push_back(i % 2);
  y[31'234] = 50, y[77'777] = -20;
  const Drawn plot = drawn({.title = "t", .x_name = "update", .y_name = "", .curves = {curve(x, y)}});
  double high = -1e9, low = 1e9, at_high = 0;
  std::size_t points = 0;
  for (const SvgElement& line : plot.curves())
    for (const Point& point : line.points()) {
      ++points;
      const double value = plot.value_at(point.y);
      if (value > high) high = value, at_high = plot.x_at(point.x);
      low = std::min(low, value);
    }
  BOOST_TEST(std::abs(high - 50) < 0.2);
  BOOST_TEST(std::abs(low + 20) < 0.2);
  BOOST_TEST(std::abs(at_high - 31'234) < 400);  // two pixels
  BOOST_TEST(points < 600u);
}

BOOST_AUTO_TEST_CASE(many_gaps_and_many_marks_take_no_more_room) {
  std::vector<double> x, y;
  for (int i = 0; i < 100'000; ++i) x.push_back(i), y.push_back(i % 2 == 0 ? NAN : i % 7);
  for (int i = 40'000; i < 60'000; ++i) y[static_cast<std::size_t>(i)] = NAN;
  Plot plot{.title = "t", .x_name = "update", .y_name = "", .curves = {curve(x, y)}};
  for (int i = 0; i < 5000; ++i) plot.marks.push_back({20.0 * i, "", "start"});
  const Drawn made = drawn(plot);
  BOOST_TEST(made.curves().size() == 2u);  // only the long gap parts the line
  std::size_t points = 0;
  for (const SvgElement& line : made.curves()) points += line.points().size();
  BOOST_TEST(points < 600u);
  BOOST_TEST(made.picture.all("rect", "start").size() < 300u);
}

BOOST_AUTO_TEST_CASE(gaps_and_single_values) {
  const Drawn plot =
      drawn({.title = "t", .x_name = "x", .y_name = "", .curves = {curve({1, 2, 3, 4, 5, 6}, {1, 2, NAN, 3, INFINITY, 4})}});
  BOOST_TEST(plot.curves().size() == 1u);  // 1 to 2; the other two are points
  BOOST_TEST(plot.picture.all("circle", [](const SvgElement&) { return true; }).size() == 2u);
  BOOST_TEST(!draw({.title = "t", .x_name = "", .y_name = "", .curves = {curve({1, 2}, {NAN, NAN})}}, 400, 200).has_value());
  BOOST_TEST(!draw({.title = "t", .x_name = "", .y_name = "", .curves = {}}, 400, 200).has_value());
}

BOOST_AUTO_TEST_CASE(values_that_are_nearly_the_same_or_beyond_all_bounds) {
  const double next = std::nextafter(5.0, 6.0);
  for (const auto& y : std::vector<std::vector<double>>{
           {5, next}, {-5, -next}, {0, 0}, {1e300, 1}, {-1e99, 1e99}, {5e-324, 1e-323}, {1e17, 1e17 + 16}})
    for (const bool logarithmic : {false, true})
      for (const double limit : {5e-324, 1e308, 5.0})
        drawn({.title = "t",
               .x_name = "x",
               .y_name = "",
               .curves = {curve({1e15, 1e15 + 1}, y)},
               .limit = limit,
               .limit_name = "limit",
               .logarithmic = logarithmic});
}

BOOST_AUTO_TEST_CASE(points_have_hints_and_can_be_hidden) {
  Curve points = curve({1, 2, 3}, {1, NAN, 3});
  points.look = Curve::Look::points;
  points.hints = {"first", "second", "third"};
  const Drawn plot = drawn({.title = "t", .x_name = "x", .y_name = "", .curves = {points}});
  const auto circles = plot.picture.all("circle", [](const SvgElement& circle) { return !circle.hint.empty(); });
  BOOST_TEST_REQUIRE(circles.size() == 2u);
  BOOST_TEST(circles[0].hint == "first");
  BOOST_TEST(circles[1].hint == "third");
  const auto groups = plot.picture.all("g", [](const SvgElement& group) { return group.attribute("class") == "curve"; });
  BOOST_TEST_REQUIRE(groups.size() == 2u);  // a gap is between them
  BOOST_TEST(groups[0].attribute("data-name") == "a curve");
  BOOST_TEST(plot.value_at(circles[1].number("cy")) == 3, boost::test_tools::tolerance(0.01));

  Curve many = curve({}, {});
  many.look = Curve::Look::points;
  for (int i = 0; i < 10'000; ++i) many.x.push_back(i), many.y.push_back(i == 5000 ? 7 : std::sin(i));
  const Drawn reduced = drawn({.title = "t", .x_name = "x", .y_name = "", .curves = {many}});
  const auto kept = reduced.picture.all("circle", [](const SvgElement& circle) { return !circle.hint.empty(); });
  BOOST_TEST(kept.size() < 300u);
  BOOST_TEST(std::count_if(kept.begin(), kept.end(), [](const SvgElement& circle) { return circle.hint == "a curve: 7"; }) ==
             1);
}

BOOST_AUTO_TEST_CASE(labels_fit_whatever_the_magnitude) {
  for (const double scale : {1e-12, 1e-7, 3e-4, 1.0, 7.0, 12345.0, 1e7, 3e9, 8e15, 2e18})
    for (const double offset : {0.0, -1.0, 1.0, 1000.0})
      for (const double width : {260.0, 560.0, 900.0})
        for (const bool logarithmic : {false, true}) {
          BOOST_TEST_CONTEXT("scale " << scale << " offset " << offset << " width " << width << (logarithmic ? " log" : "")) {
            std::vector<double> x, y;
            for (int i = 0; i < 50; ++i) x.push_back(scale * i), y.push_back(scale * (offset + std::sin(i)));
            Plot plot{.title = "a title that is rather long for a narrow plot, and then some more words",
                      .x_name = "update",
                      .y_name = "tokens per second of all ranks",
                      .curves = {}};
            for (int c = 0; c < 9; ++c)
              plot.curves.push_back({.name = format("run number {}", c), .x = x, .y = y, .colour = curve_colour(c)});
            plot.limit = scale * offset, plot.limit_name = "--clip-norm 1";
            plot.marks = {
                {x[10], "start 2", "after update 7"}, {x[12], "start 3", "after update 9"}, {x.back(), "best", "last"}};
            plot.logarithmic = logarithmic;
            drawn(plot, width, 320);
          }
        }
}

BOOST_AUTO_TEST_CASE(colours_do_not_repeat_without_dashes) {
  for (std::size_t i = 0; i < 16; ++i)
    for (std::size_t k = 0; k < i; ++k) BOOST_TEST((curve_colour(i) != curve_colour(k) || uses_dashes(i) != uses_dashes(k)));
}

BOOST_AUTO_TEST_CASE(tick_texts) {
  BOOST_TEST(tick_text(0, 1) == "0");
  BOOST_TEST(tick_text(2.5, 2.5) == "2.5");
  BOOST_TEST(tick_text(0.30000000000000004, 0.1) == "0.3");
  BOOST_TEST(tick_text(5000, 1000) == "5000");
  BOOST_TEST(tick_text(12500, 2500) == "12.5 k");
  BOOST_TEST(tick_text(1e6, 5e5) == "1 M");
  BOOST_TEST(tick_text(1.5e6, 5e5) == "1.5 M");
  BOOST_TEST(tick_text(2e-5, 1e-5) == "2e-05");
  BOOST_TEST(ticks(0, 10, 5) == (std::vector<double>{0, 2, 4, 6, 8, 10}), boost::test_tools::per_element());
  BOOST_TEST(ticks(1.7, 4.4, 5) == (std::vector<double>{2, 3, 4}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(curves_in_a_terminal) {
  std::vector<double> x, y;
  for (int i = 0; i <= 100; ++i) x.push_back(i), y.push_back(100 - i);
  const std::string stars = text_plot("falls", x, y, 60, 10, false);
  std::vector<std::string> lines;
  std::istringstream text(stars);
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  BOOST_TEST_REQUIRE(lines.size() == 12u);
  BOOST_TEST(lines[0] == "falls");
  BOOST_TEST(lines[1].starts_with("100 *"));
  BOOST_TEST(lines[10].starts_with("  0 "));
  BOOST_TEST(lines[10].ends_with("*"));
  std::size_t before = 0;
  for (std::size_t row = 1; row <= 10; ++row) {
    BOOST_TEST(lines[row].size() <= 60u);
    const std::size_t first = lines[row].find('*');
    BOOST_TEST(first >= before);
    before = first;
  }
  BOOST_TEST(text_plot("none", {1, 2}, {NAN, NAN}, 60, 10, false) == "");
  const std::string dots = text_plot("falls", x, y, 60, 10, true);
  BOOST_TEST(dots.find("\xE2\xA0") != std::string::npos);
  for (const std::size_t columns : {1u, 30u, 200u}) {
    std::istringstream all(text_plot("falls", x, y, columns, 4, false));
    for (std::string line; std::getline(all, line);) BOOST_TEST(line.size() <= std::max<std::size_t>(columns, 30));
  }
}
