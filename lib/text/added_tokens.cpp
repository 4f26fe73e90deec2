#include "text/added_tokens.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "text/utf8.hpp"

namespace fsdp {

namespace {

bool begins_with_word(std::string_view text) {
  std::size_t at = 0;
  return !text.empty() && is_word(next_character(text, at));
}

bool ends_with_word(std::string_view text) {
  return !text.empty() && begins_with_word(text.substr(text.size() - character_before(text, text.size())));
}

}  // namespace

void AddedTokens::add(const AddedToken& token) {
  expect(!token.content.empty(), "an added token has a text");
  const auto first = static_cast<unsigned char>(token.content[0]);
  std::vector<AddedToken>& here = by_first_byte_[first];
  if (here.empty()) first_bytes_.push_back(first);
  const auto longer = [](const AddedToken& a, const AddedToken& b) { return a.content.size() > b.content.size(); };
  here.insert(std::upper_bound(here.begin(), here.end(), token, longer), token);
}

std::vector<TextSection> AddedTokens::find_all(std::string_view text) const {
  std::vector<TextSection> sections;
  std::size_t done = 0;  // the sections cover text[0, done)
  const auto add = [&](TokenId id, std::size_t begin, std::size_t end) {
    if (begin < end) sections.push_back({id, {begin, end}});
  };
  for (std::size_t at = 0; at < text.size() && !first_bytes_.empty();) {
    const std::vector<AddedToken>& here = by_first_byte_[static_cast<unsigned char>(text[at])];
    const auto token =
        std::find_if(here.begin(), here.end(), [&](const AddedToken& one) { return text.substr(at).starts_with(one.content); });
    if (token == here.end()) {
      ++at;
      continue;
    }
    std::size_t begin = at, end = at + token->content.size();
    at = end;  // the search resumes here, also if the token is not accepted below
    const std::string_view before = text.substr(0, begin), after = text.substr(end);
    if (token->single_word && (ends_with_word(before) || begins_with_word(after))) continue;
    if (token->takes_left) begin = std::max(done, strip(before, false, true).size());
    if (token->takes_right) end = text.size() - strip(after, true, false).size();
    add(-1, done, begin);
    add(token->id, begin, end);
    done = end;
  }
  add(-1, done, text.size());
  return sections;
}

}  // namespace fsdp
