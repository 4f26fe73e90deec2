#include "fuzz/mutate.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

namespace fsdp::fuzz {

namespace {

struct Piece {
  std::size_t begin, size;
};

/// Returns a random range of the bytes: usually a short one, sometimes up to all bytes.
Piece any_piece(const std::string& bytes, Random& random) {
  if (bytes.empty()) return {0, 0};
  const std::size_t begin = random.below(bytes.size()), rest = bytes.size() - begin;
  const std::size_t most = std::array<std::size_t, 4>{4, 16, 512, rest}[random.below(4)];
  return {begin, 1 + random.below(std::min(most, rest))};
}

std::string random_bytes(std::size_t n, Random& random) {
  std::string bytes(n, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random.next());
  return bytes;
}

void flip_bits(std::string& bytes, Random& random) {
  for (std::size_t n = 1 + random.below(4); n > 0 && !bytes.empty(); --n) {
    char& byte = bytes[random.below(bytes.size())];
    byte = static_cast<char>(byte ^ (1 << random.below(8)));
  }
}

/// Replaces 1, 2, 4 or 8 bytes, usually aligned, by a critical value for sizes and positions.
void set_integer(std::string& bytes, Random& random) {
  const std::size_t width = std::size_t{1} << random.below(4);
  if (bytes.size() < width) return;
  std::size_t at = random.below(bytes.size() - width + 1);
  if (!random.one_in(4)) at -= at % width;
  std::uint64_t value = 0;
  std::memcpy(&value, bytes.data() + at, width);
  switch (random.below(7)) {
    case 0:
      value = 0;
      break;
    case 1:
      value = ~std::uint64_t{0};
      break;
    case 2:
      value = (std::uint64_t{1} << (8 * width - 1)) - 1;
      break;
    case 3:
      value = std::uint64_t{1} << random.below(8 * width);
      break;
    case 4:
      value += 1 + random.below(4);
      break;
    case 5:
      value -= 1 + random.below(4);
      break;
    case 6:
      value = bytes.size() - random.below(bytes.size());
      break;
  }
  std::memcpy(bytes.data() + at, &value, width);
}

void fill(std::string& bytes, Random& random) {
  const Piece piece = any_piece(bytes, random);
  const char with = std::array<char, 3>{'\0', '\xff', static_cast<char>(random.next())}[random.below(3)];
  std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(piece.begin), piece.size, with);
}

void overwrite(std::string& bytes, Random& random) {
  const Piece piece = any_piece(bytes, random);
  bytes.replace(piece.begin, piece.size, random_bytes(piece.size, random));
}

void truncate(std::string& bytes, Random& random) {
  if (!bytes.empty()) bytes.resize(random.one_in(4) ? bytes.size() - 1 : random.below(bytes.size()));
}

void extend(std::string& bytes, Random& random) {
  const std::size_t n = 1 + random.below(random.one_in(4) ? 5000 : 16);
  bytes += random.one_in(2) ? std::string(n, '\0') : random_bytes(n, random);
}

void insert(std::string& bytes, Random& random) {
  bytes.insert(random.below(bytes.size() + 1), random_bytes(1 + random.below(16), random));
}

void remove(std::string& bytes, Random& random) {
  const Piece piece = any_piece(bytes, random);
  bytes.erase(piece.begin, piece.size);
}

/// Copies a range over other bytes, or inserts it between them.
void copy_elsewhere(std::string& bytes, const std::string& from, Random& random) {
  const Piece piece = any_piece(from, random);
  const std::string copy = from.substr(piece.begin, piece.size);
  const std::size_t to = random.below(bytes.size() + 1);
  if (random.one_in(2))
    bytes.insert(to, copy);
  else
    bytes.replace(to, std::min(copy.size(), bytes.size() - to), copy);
}

/// Joins the beginning of one file and the end of another.
void splice(std::string& bytes, const std::string& other, Random& random) {
  const std::size_t from = random.below(other.size() + 1);
  bytes = bytes.substr(0, random.below(bytes.size() + 1)) + other.substr(from);
}

// --- of texts ---

/// Changes a number in the text.
void change_number(std::string& text, Random& random) {
  constexpr std::string_view digits = "0123456789";
  if (text.empty()) return;
  const std::size_t begin = std::min(text.find_first_of(digits, random.below(text.size())), text.find_first_of(digits));
  if (begin == std::string::npos) return;
  const std::size_t end = std::min(text.find_first_not_of(digits, begin), text.size());
  constexpr std::array<std::string_view, 17> others = {
      "0",     "1",     "-1",         "9",           "2147483647",          "2147483648",
      "65536", "1e308", "1e-320",     "1e999",       "9223372036854775807", "9223372036854775808",
      "0.5",   "1e40",  "4294967296", "-4294967297", "18446744073709551615"};
  if (random.one_in(2))
    text[begin + random.below(end - begin)] = digits[random.below(digits.size())];
  else
    text.replace(begin, end - begin, others[random.below(others.size())]);
}

void insert_word(std::string& text, Random& random) {
  constexpr std::array<std::string_view, 30> words = {
      "\"",   "'",   "\\", "{", "}", "[",   "]", ",",  ":",  "\n",   "null",  "true",      "\\u0000", "\\ud800",   "\xff",
      "\xc3", "../", "/",  "=", "#", "[a]", "-", "{}", "[]", "\r\n", "\"\":", "\"norms\"", "1.5",     "\"files\"", " "};
  const std::string_view word = words[random.below(words.size())];
  const std::size_t at = random.below(text.size() + 1);
  text.replace(at, random.one_in(2) ? 0 : std::min(word.size(), text.size() - at), word);
}

/// Replaces a value by values nested more deeply than any parser should accept.
void nest(std::string& text, Random& random) {
  const std::size_t depth = random.one_in(40) ? 100'000 : 1 + random.below(100);
  const std::string_view open = random.one_in(2) ? "[" : "{\"a\":";
  std::string nested;
  for (std::size_t i = 0; i < depth; ++i) nested += open;
  nested += "1";
  if (!random.one_in(4)) nested += std::string(depth, open == "[" ? ']' : '}');
  const std::size_t colon = text.find(':', random.below(text.size() + 1));
  text.insert(colon == std::string::npos ? random.below(text.size() + 1) : colon + 1, nested);
}

/// Makes a text of a million bytes. It only tests a limit of sizes and takes as long as a thousand others, so it is rare.
void lengthen(std::string& text, Random& random) {
  const std::size_t n = random.one_in(40) ? 1'000'000 : std::array<std::size_t, 2>{300, 5'000}[random.below(2)];
  text.insert(random.below(text.size() + 1), std::string(n, std::array<char, 4>{'a', '0', ' ', '\\'}[random.below(4)]));
}

void swap_lines(std::string& text, Random& random) {
  const auto line = [&] {
    if (text.empty()) return Piece{0, 0};
    const std::size_t at = text.rfind('\n', random.below(text.size())), begin = at == std::string::npos ? 0 : at + 1;
    const std::size_t end = text.find('\n', begin);
    return Piece{begin, (end == std::string::npos ? text.size() : end + 1) - begin};
  };
  const Piece from = line();
  const std::string copy = text.substr(from.begin, from.size);
  if (random.one_in(2)) text.erase(from.begin, from.size);
  text.insert(line().begin, copy);
}

void change_text(std::string& text, Random& random) {
  switch (random.below(16)) {
    case 0:
      return nest(text, random);
    case 1:
      return lengthen(text, random);
    case 2:
    case 3:
      return swap_lines(text, random);
    case 4:
    case 5:
    case 6:
    case 7:
      return insert_word(text, random);
    default:
      return change_number(text, random);
  }
}

void change(std::string& bytes, const std::string& other, Random& random) {
  switch (random.below(14)) {
    case 0:
    case 1:
      return flip_bits(bytes, random);
    case 2:
    case 3:
    case 4:
      return set_integer(bytes, random);
    case 5:
      return fill(bytes, random);
    case 6:
      return overwrite(bytes, random);
    case 7:
      return truncate(bytes, random);
    case 8:
      return extend(bytes, random);
    case 9:
      return insert(bytes, random);
    case 10:
      return remove(bytes, random);
    case 11:
      return copy_elsewhere(bytes, bytes, random);
    case 12:
      return copy_elsewhere(bytes, other, random);
    case 13:
      return splice(bytes, other, random);
  }
}

}  // namespace

std::uint64_t Random::next() {
  std::uint64_t z = (state_ += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

std::string mutant(std::span<const std::string> corpus, bool is_text, Random& random) {
  std::string bytes = corpus[random.below(corpus.size())];
  do {
    const std::string& other = corpus[random.below(corpus.size())];
    if (is_text && !random.one_in(3))
      change_text(bytes, random);
    else
      change(bytes, other, random);
  } while (random.one_in(3));
  if (bytes.size() > longest_input) bytes.resize(longest_input);
  return bytes;
}

}  // namespace fsdp::fuzz
