// Reads the drawings that report/svg.hpp writes, and checks what no drawing may do: a text outside the frame or over another
// text, a shape outside the frame, a coordinate that is not a number. Two uses:
//   const Picture picture = read_svg(figure.svg.file(figure.height));
//   BOOST_TEST(faults_of(picture) == "");                          // prints each fault
//   picture.one("rect", "gradients").number("height")              // an element by its hint
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <numbers>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/format.hpp"
#include "report/svg.hpp"

namespace fsdp::test {

/// One element: "rect", "line", "text", ... Character references are decoded.
struct SvgElement {
  std::string name;
  std::map<std::string, std::string> attributes;
  std::string text;  // of a "text": what it says
  std::string hint;  // the <title> in it; empty: none

  /// Returns an attribute, or `otherwise` if the element does not have it.
  std::string attribute(const std::string& key, const std::string& otherwise = "") const {
    const auto found = attributes.find(key);
    return found == attributes.end() ? otherwise : found->second;
  }
  /// Returns an attribute that must be a number.
  double number(const std::string& key) const { return to_number(attribute(key), name + " " + key); }
  /// The points of a "polyline" or "polygon".
  std::vector<Point> points() const {
    std::vector<Point> all;
    std::istringstream words(attribute("points"));
    for (std::string word; words >> word;) {
      const std::size_t comma = word.find(',');
      if (comma == std::string::npos) throw std::runtime_error("a point without a comma: " + word);
      all.push_back({to_number(word.substr(0, comma), "x"), to_number(word.substr(comma + 1), "y")});
    }
    return all;
  }

  /// Returns the number that is all of `text`, in the C locale's form; throws if there is none.
  static double to_number(const std::string& text, const std::string& what) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (text.empty() || error != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
      throw std::runtime_error(format("{} is no number: '{}'", what, text));
    return value;
  }
};

/// A drawing: the elements in the order of the text, without those in <defs>.
struct Picture {
  double width = 0, height = 0;
  std::vector<SvgElement> elements;

  std::vector<SvgElement> all(const std::string& name, const std::function<bool(const SvgElement&)>& which) const {
    std::vector<SvgElement> found;
    for (const SvgElement& element : elements)
      if (element.name == name && which(element)) found.push_back(element);
    return found;
  }
  /// The elements with a hint that begins with `hint`.
  std::vector<SvgElement> all(const std::string& name, const std::string& hint) const {
    return all(name, [&](const SvgElement& element) { return element.hint.starts_with(hint); });
  }
  /// Returns the only one of them; throws if there is none or another one.
  SvgElement one(const std::string& name, const std::string& hint) const {
    const auto found = all(name, hint);
    if (found.size() != 1) throw std::runtime_error(format("{} elements '{}' with the hint '{}...'", found.size(), name, hint));
    return found.front();
  }
  /// The number of texts that are `text`.
  std::size_t says(const std::string& text) const {
    return all("text", [&](const SvgElement& element) { return element.text == text; }).size();
  }
  /// Returns the only text that begins with `begin`.
  SvgElement text(const std::string& begin) const {
    const auto found = all("text", [&](const SvgElement& element) { return element.text.starts_with(begin); });
    if (found.size() != 1) throw std::runtime_error(format("{} texts begin with '{}'", found.size(), begin));
    return found.front();
  }
};

namespace detail {

/// Parses the part of XML that drawings have: elements, attributes in double quotes, character references; no comments.
class SvgParser {
 public:
  explicit SvgParser(std::string_view text) : rest_(text) {}

  Picture picture() {
    skip_space();
    element(nullptr, false);
    skip_space();
    if (!rest_.empty()) fail("something is after the drawing");
    return std::move(picture_);
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw std::runtime_error(format("no drawing: {}, at '{}'", why, rest_.substr(0, 60)));
  }
  bool take(std::string_view word) {
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  void need(std::string_view word) {
    if (!take(word)) fail("'" + std::string(word) + "' is missing");
  }
  void skip_space() { rest_.remove_prefix(std::min(rest_.size(), rest_.find_first_not_of(" \n"))); }
  std::string word() {
    const std::size_t end = std::min(rest_.size(), rest_.find_first_of(" \n=<>/\""));
    if (end == 0) fail("a name is missing");
    const std::string out(rest_.substr(0, end));
    rest_.remove_prefix(end);
    return out;
  }
  /// Returns the text before the next `end`, which must be there, decoded.
  std::string text_before(char end) {
    std::string out;
    while (!rest_.empty() && rest_.front() != end) {
      if (rest_.front() == '&') {
        static constexpr std::array<std::pair<std::string_view, char>, 5> references = {
            {{"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&#39;", '\''}}};
        const auto known = std::find_if(references.begin(), references.end(),
                                        [&](const auto& reference) { return rest_.starts_with(reference.first); });
        if (known == references.end()) fail("an unknown reference");
        out += known->second;
        rest_.remove_prefix(known->first.size());
        continue;
      }
      const auto byte = static_cast<unsigned char>(rest_.front());
      if (rest_.front() == '<' || rest_.front() == '>' || (byte < ' ' && byte != '\n' && byte != '\t'))
        fail("a character that is not escaped");
      out += rest_.front();
      rest_.remove_prefix(1);
    }
    if (rest_.empty()) fail("the text ends early");
    return out;
  }
  /// Reads an element. `outer` is the element around it; `hidden`: it is a definition.
  void element(SvgElement* outer, bool hidden) {
    need("<");
    SvgElement read{.name = word(), .attributes = {}, .text = {}, .hint = {}};
    for (skip_space(); !rest_.starts_with("/>") && !rest_.starts_with(">"); skip_space()) {
      const std::string key = word();
      need("=\"");
      const std::string value = text_before('"');
      need("\"");
      if (!read.attributes.emplace(key, value).second) fail("the attribute " + key + " is there twice");
    }
    if (!outer) {
      if (read.name != "svg") fail("its first element is '" + read.name + "'");
      std::istringstream box(read.attribute("viewBox"));
      double x = 1, y = 1;
      if (!(box >> x >> y >> picture_.width >> picture_.height) || x != 0 || y != 0) fail("it has no viewBox from 0, 0");
    }
    hidden = hidden || read.name == "defs";
    // An element comes before those in it, but its text and hint are only known afterwards.
    const std::size_t place = picture_.elements.size();
    const bool keep = outer && !hidden && read.name != "title";
    if (keep) picture_.elements.emplace_back();
    if (!take("/>")) {
      need(">");
      for (;;) {
        const std::string text = text_before('<');
        if (read.name == "text" || read.name == "title")
          read.text += text;
        else if (text.find_first_not_of(" \n") != std::string::npos)
          fail("'" + text + "' is in a '" + read.name + "'");
        if (take("</")) break;
        element(&read, hidden);
      }
      if (const std::string end = word(); end != read.name) fail("'" + read.name + "' ends as '" + end + "'");
      need(">");
    }
    if (read.name == "title" && outer) outer->hint = read.text;
    if (keep) picture_.elements[place] = std::move(read);
  }

  std::string_view rest_;
  Picture picture_;
};

using Corners = std::array<Point, 4>;

/// The corners of a text's box, by text_width().
inline Corners corners_of(const SvgElement& text) {
  const double x = text.number("x"), y = text.number("y");
  const double size = text.attributes.contains("font-size") ? text.number("font-size") : TextStyle().size;
  const double width = text_width(text.text, size, text.attribute("font-weight") == "bold");
  const std::string anchor = text.attribute("text-anchor", "start");
  const double left = anchor == "end" ? -width : anchor == "middle" ? -width / 2 : 0;
  Corners corners = {{{left, -0.72 * size}, {left + width, -0.72 * size}, {left + width, 0.21 * size}, {left, 0.21 * size}}};
  double angle = 0;
  if (const std::string turned = text.attribute("transform"); !turned.empty()) {
    std::istringstream words(turned.substr(std::string("rotate(").size()));
    double around_x = 0, around_y = 0;
    if (!turned.starts_with("rotate(") || !(words >> angle >> around_x >> around_y) || around_x != x || around_y != y)
      throw std::runtime_error("a text is not turned around its point: " + turned);
    angle *= std::numbers::pi / 180;
  }
  for (Point& corner : corners)
    corner = {x + corner.x * std::cos(angle) - corner.y * std::sin(angle),
              y + corner.x * std::sin(angle) + corner.y * std::cos(angle)};
  return corners;
}

/// Returns true if a line can be drawn between two convex shapes, or if they overlap by less than half a pixel.
inline bool are_apart(const Corners& a, const Corners& b) {
  for (const Corners* one : {&a, &b})
    for (std::size_t i = 0; i < 4; ++i) {
      const Point from = (*one)[i], to = (*one)[(i + 1) % 4];
      const double length = std::hypot(to.x - from.x, to.y - from.y);
      if (length == 0) return true;
      const auto along = [&](const Point& p) { return (p.x * (to.y - from.y) - p.y * (to.x - from.x)) / length; };
      const auto range = [&](const Corners& corners) {
        double least = along(corners[0]), most = least;
        for (const Point& corner : corners) least = std::min(least, along(corner)), most = std::max(most, along(corner));
        return std::pair(least, most);
      };
      const auto [a_least, a_most] = range(a);
      const auto [b_least, b_most] = range(b);
      if (a_most < b_least + 0.5 || b_most < a_least + 0.5) return true;
    }
  return false;
}

/// The points that bound an element.
inline std::vector<Point> bounds_of(const SvgElement& element) {
  const auto at = [&](const std::string& key) { return element.number(key); };
  if (element.name == "text") {
    const Corners corners = corners_of(element);
    return {corners.begin(), corners.end()};
  }
  if (element.name == "rect") {
    const double x = element.attributes.contains("x") ? at("x") : 0, y = element.attributes.contains("y") ? at("y") : 0;
    if (at("width") < 0 || at("height") < 0) throw std::runtime_error("a box has a negative size");
    return {{x, y}, {x + at("width"), y + at("height")}};
  }
  if (element.name == "line") return {{at("x1"), at("y1")}, {at("x2"), at("y2")}};
  if (element.name == "circle") return {{at("cx") - at("r"), at("cy") - at("r")}, {at("cx") + at("r"), at("cy") + at("r")}};
  return element.points();
}

}  // namespace detail

/// Reads one drawing: a file, or an <svg> element of a page. Throws std::runtime_error if `text` is no well-formed drawing.
inline Picture read_svg(std::string_view text) { return detail::SvgParser(text).picture(); }

/// Returns the drawings of a page, in order.
inline std::vector<Picture> drawings_in(std::string_view page) {
  std::vector<Picture> all;
  constexpr std::string_view end = "</svg>";
  for (std::size_t at = page.find("<svg"); at != std::string_view::npos; at = page.find("<svg", at + 1)) {
    const std::size_t to = page.find(end, at);
    if (to == std::string_view::npos) throw std::runtime_error("a drawing has no end");
    all.push_back(read_svg(page.substr(at, to + end.size() - at)));
  }
  return all;
}

/// Returns the faults of a drawing, one a line; "" if it has none.
inline std::string faults_of(const Picture& picture) {
  std::string faults;
  std::vector<std::pair<const SvgElement*, detail::Corners>> texts;
  for (const SvgElement& element : picture.elements) {
    const std::string what = format("{} '{}'", element.name, element.name == "text" ? element.text : element.hint);
    try {
      for (const Point& point : detail::bounds_of(element))
        if (point.x < -0.1 || point.y < -0.1 || point.x > picture.width + 0.1 || point.y > picture.height + 0.1) {
          faults += format("{} is outside the frame, at {:.1f}, {:.1f}\n", what, point.x, point.y);
          break;
        }
      if (element.name != "text") continue;
      for (const auto& [other, corners] : texts)
        if (!detail::are_apart(corners, detail::corners_of(element))) faults += format("{} is over '{}'\n", what, other->text);
      texts.emplace_back(&element, detail::corners_of(element));
    } catch (const std::runtime_error& error) {
      faults += format("{}: {}\n", what, error.what());
    }
  }
  return faults;
}

}  // namespace fsdp::test
