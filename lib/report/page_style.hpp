// The style sheet and the script of a page (page_parts.hpp).
#pragma once

#include <string_view>

namespace fsdp {

extern const std::string_view page_style, page_script;

}  // namespace fsdp
