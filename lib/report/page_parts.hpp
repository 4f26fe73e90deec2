// The parts that pages have in common: their frame, tables, plots, bars, and texts with the tokens that count in the loss.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "report/plot.hpp"
#include "text/shown_tokens.hpp"

namespace fsdp {

/// The first bytes of each page. Other programs' pages begin otherwise.
inline constexpr std::string_view page_beginning =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
    "content=\"width=device-width, initial-scale=1\"><title>fsdp: ";
/// A page with its style and script, which needs no network. `title` is text, and `body` is HTML.
std::string html_page(const std::string& title, const std::string& body);
/// A part of a page. `title` is text, and `content` is HTML; if that is empty, so is the part.
std::string html_section(const std::string& id, const std::string& title, const std::string& content);

/// "12.3 %" for 0.123.
std::string percent(double share);
/// "12.3 ms" or "1.2 s".
std::string ms_text(double ms);

using Cells = std::vector<std::string>;
/// A table of text; the first row is its head. Cells are escaped.
std::string table(const std::vector<Cells>& rows);

/// A plot as a part of a page; empty if it has no finite value.
std::string plot_element(const Plot& plot);
/// Plots side by side. `elements` are those of plot_element(); if they are empty, so is the result.
std::string plots_of(const std::string& elements);
/// A plot of scaling: tokens per second by numbers of `unit`, such as "nodes". It gets one more curve, the ideal: in proportion
/// to the numbers, from the first point of the first curve.
Plot throughput_plot(std::string title, std::string unit, std::vector<Curve> curves);

/// A horizontal bar in parts, as wide as the largest bar that is drawn with it. A part below 0.05 % is left out.
struct Bar {
  struct Part {
    std::string name;
    double value;
    std::size_t colour;  // of curve_colour()
  };
  std::string title;
  std::vector<Part> parts;

  double total() const {
    double sum = 0;
    for (const Part& part : parts)
      if (part.value > 0 && part.value < 1e100) sum += part.value;
    return sum;
  }
};
std::string draw_bars(const std::vector<Bar>& bars, const std::function<std::string(double)>& text);

/// A text in which tokens that count in the loss look different, line ends are visible, and each beginning of a document is
/// marked.
std::string html_of(const std::vector<ShownText>& shown);

}  // namespace fsdp
