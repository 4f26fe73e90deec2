// Writes drawings as SVG: boxes, lines and text in pixels, y downwards. Text is placed by the advance widths of Helvetica, so
// that a caller knows whether a label fits. A drawing is a file of its own, or a part of a page, which then has its colours: a
// colour is any SVG paint, such as "#77aadd", "currentColor" or "var(--c1)".
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace fsdp {

struct Point {
  double x = 0, y = 0;
};

/// Returns `text` for use in SVG, XML and HTML, also in attributes. Control characters and bytes that are not UTF-8 are
/// replaced by U+FFFD.
std::string escaped(std::string_view text);
/// The width in pixels of `text` in Helvetica or Arial of `size` pixels. Characters that are not ASCII count as one em. Of bold
/// text it is an upper bound.
double text_width(std::string_view text, double size, bool bold = false);
/// Returns `text`, cut so that it is at most `width` pixels wide; a cut text ends in "…".
std::string fitted(std::string_view text, double width, double size, bool bold = false);

enum class Anchor { start, middle, end };
struct TextStyle {
  double size = 13;
  Anchor anchor = Anchor::start;
  std::string_view fill = {};  // empty: the drawing's text colour
  bool bold = false;
  double rotate = 0;           // degrees, clockwise around the text's point
  std::string_view halo = {};  // the colour of an outline below the text, which may lie over lines
};
struct Stroke {
  std::string_view colour = {};  // empty: none
  double width = 1;
  std::string_view dashes = {};  // such as "3 2"
};

class Svg {
 public:
  explicit Svg(double width) : width_(width) {}

  /// `hint` is shown while the pointer rests on the box; empty: none.
  void box(double x, double y, double width, double height, std::string_view fill, const Stroke& stroke = {},
           std::string_view hint = {}, double radius = 0);
  void line(Point from, Point to, const Stroke& stroke);
  /// Lines through `points`. `fill` is the paint of the area within, or "none". `attributes` are further attributes, with
  /// quoted values.
  void path(std::span<const Point> points, const Stroke& stroke, std::string_view fill = "none", std::string_view hint = {},
            std::string_view attributes = {});
  void circle(Point centre, double radius, std::string_view fill, const Stroke& stroke = {}, std::string_view hint = {});
  /// `y` is the base line.
  void text(double x, double y, std::string_view text, const TextStyle& style = {});
  /// Adds a paint "url(#ID)" of slanted lines of `colour` on `back`.
  void hatch(std::string_view id, std::string_view back, std::string_view colour);
  /// Adds elements that are SVG already.
  void raw(std::string_view elements) { body_ += elements; }

  /// Returns the drawing as a file, on a white ground.
  std::string file(double height) const;
  /// Returns the drawing as an element of a page, as wide as its place there. `label` says what it shows, for those who cannot
  /// see it; `attributes` are further attributes of the element.
  std::string element(double height, std::string_view label, std::string_view attributes = {}) const;

 private:
  double width_;
  std::string body_, definitions_;
};

/// A drawing: svg.file(height) is a file, svg.element(height, label, attributes) a part of a page.
struct Figure {
  Svg svg;
  double height = 0;
  std::string attributes = {};
};

}  // namespace fsdp
