// The byte-order mark of UTF-8, which some editors write at the beginning of a text file. The mark is not part of the text.
#pragma once

#include <cstddef>
#include <string_view>

namespace fsdp {

/// The length in bytes of the mark at the beginning of `text`: 3, or 0 if `text` does not begin with a mark.
inline std::size_t byte_order_mark(std::string_view text) { return text.starts_with("\xef\xbb\xbf") ? 3 : 0; }

}  // namespace fsdp
