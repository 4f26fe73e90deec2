// Curves in a terminal: dots of Braille patterns, two columns and four rows in each character, or stars without Unicode.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "report/run.hpp"

namespace fsdp {

/// A drawing of y over x, `columns` characters wide and `rows` high, with the title above, the range of y at the left, and the
/// range of x below. Values that are not finite are left out; "" if no value is finite. Lines end with '\n' and have at most
/// `columns` characters, at least 30.
std::string text_plot(const std::string& title, const std::vector<double>& x, const std::vector<double>& y, std::size_t columns,
                      std::size_t rows, bool unicode, bool from_zero = false);

/// A line with the last update and its loss, the speed, and how the newest start ended or how long ago its last line is.
std::string text_summary(const Run& run);
/// The loss and the speed over all updates, with the name of the run in the titles if `is_named`.
std::string text_curves(const Run& run, bool is_named, std::size_t columns, bool unicode);

}  // namespace fsdp
