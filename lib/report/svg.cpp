#include "report/svg.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <utility>

#include "base/clean_text.hpp"
#include "base/format.hpp"

namespace fsdp {

namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD", ellipsis = "\xE2\x80\xA6";

/// The advance widths of Helvetica for the characters from space to tilde, in thousandths of an em (Adobe's font metrics).
constexpr std::array<std::uint16_t, 95> widths = {
    278, 278, 355, 556, 556, 889, 667, 191, 333,  333, 389, 584, 278, 333, 278, 278, 556, 556, 556, 556, 556, 556, 556, 556,
    556, 556, 278, 278, 584, 584, 584, 556, 1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833, 722, 778,
    667, 778, 722, 667, 611, 722, 667, 944, 667,  667, 611, 278, 278, 278, 469, 556, 333, 556, 556, 500, 556, 556, 278, 556,
    556, 222, 222, 500, 222, 833, 556, 556, 556,  556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584};

/// XML has no U+FFFE and U+FFFF.
bool is_in_xml(std::string_view character) { return character != "\uFFFE" && character != "\uFFFF"; }

/// Calls see(character) for each character of `text`; bytes that are none are seen as U+FFFD.
template <class See>
void each_character(std::string_view text, const See& see) {
  while (!text.empty()) {
    const std::size_t length = length_of_character(text);
    see(length == 0 || !is_in_xml(text.substr(0, length)) ? replacement : text.substr(0, length));
    text.remove_prefix(length == 0 ? 1 : length);
  }
}

double width_of(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  return character.size() > 1 ? 1 : first < ' ' || first > '~' ? 0.6 : 1e-3 * widths[first - ' '];
}

/// Coordinates have one decimal, which is enough for the eye and keeps pages small.
std::string number(double x) {
  const double rounded = std::round(10 * x) / 10;
  return format("{}", rounded == 0 ? 0.0 : rounded);
}

std::string attributes_of(const Stroke& stroke) {
  if (stroke.colour.empty()) return {};
  std::string out = format(" stroke=\"{}\"", escaped(stroke.colour));
  if (stroke.width != 1) out += format(" stroke-width=\"{}\"", stroke.width);
  if (!stroke.dashes.empty()) out += format(" stroke-dasharray=\"{}\"", stroke.dashes);
  return out;
}

std::string ended(std::string_view name, std::string_view hint) {
  return hint.empty() ? "/>\n" : format("><title>{}</title></{}>\n", escaped(hint), name);
}

}  // namespace

std::string escaped(std::string_view text) {
  static constexpr std::pair<std::string_view, std::string_view> entities[] = {
      {"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}};
  std::string out;
  each_character(text, [&](std::string_view character) {
    const auto entity = std::ranges::find(entities, character, &std::pair<std::string_view, std::string_view>::first);
    out += entity != std::end(entities)                                      ? entity->second
           : is_control(character) && character != "\n" && character != "\t" ? replacement
                                                                             : character;
  });
  return out;
}

double text_width(std::string_view text, double size, bool bold) {
  double ems = 0;
  each_character(text, [&](std::string_view character) { ems += width_of(character); });
  return (bold ? 1.1 : 1) * size * ems;
}

std::string fitted(std::string_view text, double width, double size, bool bold) {
  if (bold) width /= 1.1;
  if (text_width(text, size) <= width) return std::string(text);
  std::string out;
  double ems = 1;  // for the ellipsis
  bool full = false;
  each_character(text, [&](std::string_view character) {
    ems += width_of(character);
    full = full || size * ems > width;
    if (!full) out += character;
  });
  return out + std::string(ellipsis);
}

void Svg::box(double x, double y, double width, double height, std::string_view fill, const Stroke& stroke,
              std::string_view hint, double radius) {
  body_ += format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"{}{}{}", number(x), number(y), number(width),
                  number(height), escaped(fill), radius > 0 ? format(" rx=\"{}\"", radius) : "", attributes_of(stroke),
                  ended("rect", hint));
}

void Svg::line(Point from, Point to, const Stroke& stroke) {
  body_ += format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"{}/>\n", number(from.x), number(from.y), number(to.x),
                  number(to.y), attributes_of(stroke));
}

void Svg::path(std::span<const Point> points, const Stroke& stroke, std::string_view fill, std::string_view hint,
               std::string_view attributes) {
  if (points.empty()) return;
  std::string at;
  for (const Point& point : points) at += format("{}{},{}", at.empty() ? "" : " ", number(point.x), number(point.y));
  const std::string_view name = fill == "none" ? "polyline" : "polygon";
  body_ += format("<{} points=\"{}\" fill=\"{}\"{}{}{}{}", name, at, escaped(fill), attributes_of(stroke),
                  attributes.empty() ? "" : " ", attributes, ended(name, hint));
}

void Svg::circle(Point centre, double radius, std::string_view fill, const Stroke& stroke, std::string_view hint) {
  body_ += format("<circle cx=\"{}\" cy=\"{}\" r=\"{}\" fill=\"{}\"{}{}", number(centre.x), number(centre.y), number(radius),
                  escaped(fill), attributes_of(stroke), ended("circle", hint));
}

void Svg::text(double x, double y, std::string_view text, const TextStyle& style) {
  std::string more;
  if (style.size != 13) more += format(" font-size=\"{}\"", style.size);
  if (style.anchor != Anchor::start)
    more += style.anchor == Anchor::middle ? " text-anchor=\"middle\"" : " text-anchor=\"end\"";
  if (!style.fill.empty()) more += format(" fill=\"{}\"", escaped(style.fill));
  if (style.bold) more += " font-weight=\"bold\"";
  if (style.rotate != 0) more += format(" transform=\"rotate({} {} {})\"", style.rotate, number(x), number(y));
  if (!style.halo.empty())
    more += format(" stroke=\"{}\" stroke-width=\"4\" paint-order=\"stroke\" stroke-linejoin=\"round\"", escaped(style.halo));
  body_ += format("<text x=\"{}\" y=\"{}\"{}>{}</text>\n", number(x), number(y), more, escaped(text));
}

void Svg::hatch(std::string_view id, std::string_view back, std::string_view colour) {
  definitions_ += format(
      "<pattern id=\"{}\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><rect "
      "width=\"6\" height=\"6\" fill=\"{}\"/><rect width=\"2\" height=\"6\" fill=\"{}\"/></pattern>\n",
      id, escaped(back), escaped(colour));
}

std::string Svg::file(double height) const {
  return format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" font-family=\"Helvetica, "
      "Arial, sans-serif\" font-size=\"13\" fill=\"#222\">\n{2}<rect width=\"{0}\" height=\"{1}\" rx=\"6\" fill=\"#fff\"/>\n{3}"
      "</svg>\n",
      number(width_), number(height), definitions_.empty() ? "" : format("<defs>\n{}</defs>\n", definitions_), body_);
}

std::string Svg::element(double height, std::string_view label, std::string_view attributes) const {
  return format(
      "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\" "
      "fill=\"currentColor\"{}{}>\n{}{}</svg>\n",
      number(width_), number(height), escaped(label), attributes.empty() ? "" : " ", attributes,
      definitions_.empty() ? "" : format("<defs>\n{}</defs>\n", definitions_), body_);
}

}  // namespace fsdp
