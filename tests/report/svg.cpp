// Svg: what it writes is well-formed whatever the texts are, and svg_reader.hpp, which the other tests use, finds faults.
#include "report/svg.hpp"

#include <boost/test/unit_test.hpp>

#include "report/svg_reader.hpp"

using namespace fsdp;
using namespace fsdp::test;

BOOST_AUTO_TEST_CASE(texts_come_back_whatever_they_are) {
  const std::string hostile = "a<b> & \"c\" 'd' ]]> <!-- &amp;";
  Svg svg(600);
  svg.text(10, 30, hostile);
  svg.box(10, 40, 20.04, 10.06, "#fff", {.colour = "#\"<"}, hostile);
  svg.circle({50, 60}, 4, "red", {}, hostile);
  svg.text(10, 100, "bytes \xFF\xC3 \xED\xA0\x80 \x01\x7F end");
  const Picture picture = read_svg(svg.file(120));
  BOOST_TEST(picture.width == 600);
  BOOST_TEST(picture.height == 120);
  BOOST_TEST(picture.says(hostile) == 1u);
  const SvgElement box = picture.one("rect", hostile);
  BOOST_TEST(box.attribute("stroke") == "#\"<");
  BOOST_TEST(box.number("width") == 20);
  BOOST_TEST(box.number("height") == 10.1);
  BOOST_TEST(picture.one("circle", "a<b>").number("cx") == 50);
  const std::string r = "\xEF\xBF\xBD", replaced = "bytes " + r + r + " " + r + r + r + " " + r + r + " end";
  BOOST_TEST(picture.says(replaced) == 1u, picture.text("bytes").text);
  BOOST_TEST(faults_of(picture) == "");
  // The same as an element of a page.
  const auto drawings = drawings_in("<p>" + svg.element(120, hostile) + "</p><p>" + svg.element(120, "b") + "</p>");
  BOOST_TEST(drawings.size() == 2u);
  BOOST_TEST(drawings.at(0).says(hostile) == 1u);
}

BOOST_AUTO_TEST_CASE(widths_are_those_of_the_font) {
  BOOST_TEST(text_width("Hello", 1000) == 722 + 556 + 222 + 222 + 556);
  BOOST_TEST(text_width("Hello", 1000, true) > text_width("Hello", 1000));
  BOOST_TEST(fitted("Hello", text_width("Hello", 13), 13) == "Hello");
  const std::string cut = fitted("a long text that does not fit", 60, 13);
  BOOST_TEST(cut.ends_with("\xE2\x80\xA6"));
  BOOST_TEST(text_width(cut, 13) <= 60);
}

BOOST_AUTO_TEST_CASE(the_reader_finds_faults) {
  const auto faults = [](const auto& draw) {
    Svg svg(200);
    draw(svg);
    return faults_of(read_svg(svg.file(100)));
  };
  using enum Anchor;
  BOOST_TEST(faults([](Svg& svg) { svg.text(10, 30, "inside"), svg.text(10, 44, "inside"); }) == "");
  BOOST_TEST(faults([](Svg& svg) { svg.text(180, 30, "outside"); }).find("text 'outside' is outside the frame") == 0u);
  BOOST_TEST(faults([](Svg& svg) { svg.text(20, 30, "outside", {.anchor = end}); }) != "");
  BOOST_TEST(faults([](Svg& svg) { svg.text(20, 5, "outside"); }) != "");
  BOOST_TEST(faults([](Svg& svg) { svg.text(190, 50, "turned", {.rotate = 60}); }) != "");
  BOOST_TEST(faults([](Svg& svg) { svg.text(50, 30, "one"), svg.text(60, 32, "two"); }) == "text 'two' is over 'one'\n");
  // Turned texts are compared as they are, not by the boxes around them.
  const auto slanted = [](double apart) {
    return [=](Svg& svg) {
      for (const double x : {60.0, 60 + apart}) svg.text(x, 90, "a long name", {.anchor = end, .rotate = 60});
    };
  };
  BOOST_TEST(faults(slanted(15)) == "");
  BOOST_TEST(faults(slanted(8)) != "");
  BOOST_TEST(faults([](Svg& svg) { svg.box(150, 10, 60, 5, "#fff"); }) != "");
  BOOST_TEST(faults([](Svg& svg) { svg.box(150, 10, -6, 5, "#fff"); }).find("negative") != std::string::npos);
  BOOST_TEST(faults([](Svg& svg) {
               svg.line({1, 1}, {0.0 / 0.0, 3}, {.colour = "#000"});
             }).find("is no number") != std::string::npos);
  for (const char* broken : {"<svg viewBox=\"0 0 1 1\">", "<p></p>", "<svg viewBox=\"0 0 1 1\"><text>a<b></text></svg>",
                             "<svg viewBox=\"0 0 1 1\"><g a=\"1\" a=\"2\"/></svg>", "<svg viewBox=\"0 0 1 1\">&nbsp;</svg>"})
    BOOST_CHECK_THROW(read_svg(broken), std::runtime_error);
}
