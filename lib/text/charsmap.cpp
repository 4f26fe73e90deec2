#include "text/charsmap.hpp"

#include "base/error.hpp"
#include "text/utf8.hpp"

namespace fsdp {

namespace {

UserError damaged() { return UserError("the table of its normalizer Precompiled is damaged; fetch the file again"); }

std::uint32_t integer_at(std::string_view bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 4; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

}  // namespace

Charsmap::Charsmap(std::string_view table) : clusters_(R"(\X)") {
  if (table.size() < 4) throw damaged();
  const std::size_t bytes = integer_at(table, 0);
  if (bytes == 0 || bytes % 4 != 0 || bytes > table.size() - 4) throw damaged();
  for (std::size_t at = 4; at < 4 + bytes; at += 4) units_.push_back(integer_at(table, at));
  texts_ = table.substr(4 + bytes);
  if (valid_until(texts_) < texts_.size()) throw damaged();
  for (std::size_t c = 0; c < of_ascii_.size(); ++c) {
    const char text = static_cast<char>(c);
    of_ascii_[c] = find({&text, 1}).value_or(std::string_view(&text, 1));
  }
}

std::string Charsmap::from_base64(std::string_view text) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  std::uint32_t bits = 0;
  unsigned count = 0;
  while (text.ends_with('=')) text.remove_suffix(1);
  for (const char c : text) {
    const std::size_t digit = digits.find(c);
    if (digit == std::string_view::npos) throw damaged();
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 0xff);
  }
  return bytes;
}

std::optional<std::string_view> Charsmap::find(std::string_view characters) const {
  const auto offset = [](std::uint32_t unit) { return std::size_t{unit >> 10} << ((unit & (1U << 9)) >> 6); };
  std::size_t at = offset(units_[0]);
  for (const char c : characters) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == 0) break;
    at ^= byte;
    if (at >= units_.size()) return std::nullopt;
    const std::uint32_t unit = units_[at];
    if ((unit & (1U << 31 | 0xffU)) != byte) return std::nullopt;
    at ^= offset(unit);
    if ((unit >> 8 & 1) == 0) continue;
    if (at >= units_.size()) return std::nullopt;
    const std::size_t begin = units_[at] & 0x7fffffffU;
    if (begin > texts_.size()) return std::nullopt;
    return std::string_view(texts_).substr(begin, texts_.find('\0', begin) - begin);
  }
  return std::nullopt;
}

void Charsmap::append(std::string_view cluster, std::string& out) const {
  constexpr std::size_t longest_cluster = 5;  // bytes of a cluster that is looked up as a whole
  if (cluster.size() <= longest_cluster)
    if (const auto found = find(cluster)) {
      out += *found;
      return;
    }
  for (std::size_t begin = 0, end = 0; begin < cluster.size(); begin = end) {
    next_character(cluster, end);
    const std::string_view character = cluster.substr(begin, end - begin);
    out += find(character).value_or(character);
  }
}

std::string Charsmap::operator()(const std::string& text) const {
  std::string out;
  out.reserve(text.size());
  // Two ASCII characters never form a grapheme cluster, except "\r\n".
  const auto ends_cluster = [&](std::size_t at) {
    return at == text.size() || (is_ascii(text[at - 1]) && is_ascii(text[at]) && !(text[at - 1] == '\r' && text[at] == '\n'));
  };
  std::vector<TextRange> clusters;
  for (std::size_t begin = 0; begin < text.size();) {
    if (is_ascii(text[begin]) && ends_cluster(begin + 1)) {
      out += of_ascii_[static_cast<unsigned char>(text[begin++])];
      continue;
    }
    std::size_t end = begin + 1;
    while (!ends_cluster(end)) ++end;
    const std::string_view run = std::string_view(text).substr(begin, end - begin);
    clusters.clear();
    clusters_.find_all(run, clusters);
    for (const TextRange& range : clusters) append(run.substr(range.begin, range.end - range.begin), out);
    begin = end;
  }
  return out;
}

}  // namespace fsdp
