// The page of one or several runs: one HTML file with its style, drawings and script, which needs no network. Without script it
// is complete; with script it shows the values under the pointer, hides curves, and smooths them. All text from files is
// escaped.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/run.hpp"

namespace fsdp {

/// The first bytes of each page. Other programs' pages begin otherwise.
inline constexpr std::string_view page_beginning =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
    "content=\"width=device-width, initial-scale=1\"><title>fsdp: ";

/// Returns the page. `runs` is not empty.
std::string make_page(const std::vector<Run>& runs);

/// The losses of the runs over updates, as a figure of its own. Throws UserError if there are none.
Figure draw_losses(const std::vector<Run>& runs);

}  // namespace fsdp
