#include "text/shown_tokens.hpp"

#include <algorithm>
#include <utility>

#include "base/clean_text.hpp"
#include "text/utf8.hpp"

namespace fsdp {

std::vector<ShownText> shown_tokens(const Tokenizer& tokenizer, std::span<const TokenId> ids, std::span<const TokenId> mask,
                                    std::span<const std::size_t> documents, std::size_t most) {
  constexpr std::size_t longest_token = 100;  // in bytes; longer ones are cut
  std::vector<ShownText> shown;
  const auto decoder = tokenizer.make_decoder();
  std::size_t bytes = 0, i = 0;
  for (auto next = documents.begin(); i < ids.size() && bytes < most; ++i) {
    const bool is_target = !mask.empty() && mask[i] == 1, begins = next != documents.end() && *next == i;
    if (begins) ++next;
    if (begins && !shown.empty()) decoder->finish(shown.back().text);
    if (shown.empty() || begins || shown.back().is_target != is_target) shown.push_back({{}, is_target, begins});
    std::string& text = shown.back().text;
    const std::size_t before = text.size();
    decoder->add(ids[i], text);
    if (text.size() == before && tokenizer.decode({ids[i]}).empty()) text += tokenizer.spelling(ids[i]);  // a special token
    if (text.size() > before + longest_token) {
      text.resize(before + longest_token);
      text.resize(without_open_end(text));
      text += "...";
    }
    bytes += text.size() - before;
  }
  if (!shown.empty()) decoder->finish(shown.back().text);
  if (i < ids.size()) shown.push_back({"..."});
  return shown;
}

std::vector<ShownText> shown_sequence(const Tokenizer& tokenizer, std::span<const TokenId> ids, std::span<const TokenId> mask,
                                      std::span<const std::size_t> documents) {
  constexpr std::size_t far = 300, head = 150, context = 50;  // in tokens
  const auto part = [&](std::size_t from, std::size_t to, std::size_t most) {
    std::vector<std::size_t> begins;
    for (const std::size_t at : documents)
      if (at >= from) begins.push_back(at - from);
    return shown_tokens(tokenizer, ids.subspan(from, to - from), mask.subspan(from, to - from), begins, most);
  };
  const auto first = static_cast<std::size_t>(std::find(mask.begin(), mask.end(), 1) - mask.begin());
  if (first <= far || first == ids.size()) return part(0, ids.size(), 2000);
  std::vector<ShownText> shown = part(0, head, 1000);
  if (shown.back().text != "...") shown.push_back({"..."});
  for (ShownText& run : part(first - context, ids.size(), 1000)) shown.push_back(std::move(run));
  return shown;
}

std::string marked(const std::vector<ShownText>& shown) {
  std::string text;
  bool is_marked = false;
  for (const ShownText& run : shown) {
    if (run.is_target != is_marked) text += (is_marked = run.is_target) ? "[[" : "]]";
    for (const char c : run.text) text += c == '\n' ? "\\n" : c == '\t' ? "\\t" : c == '\r' ? "\\r" : std::string(1, c);
  }
  if (is_marked) text += "]]";
  return one_line(text);
}

nlohmann::ordered_json to_json(const std::vector<ShownText>& shown) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ShownText& run : shown) {
    list.push_back({{"text", run.text}});
    if (run.is_target) list.back()["is_target"] = true;
    if (run.begins_document) list.back()["begins_document"] = true;
  }
  return list;
}

std::vector<ShownText> shown_of_json(const nlohmann::json& list) {
  std::vector<ShownText> shown;
  if (!list.is_array()) return shown;
  for (const nlohmann::json& run : list) {
    const auto is_true = [&](const char* key) { return run.contains(key) && run[key] == true; };
    if (run.is_object() && run.contains("text") && run["text"].is_string())
      shown.push_back({run["text"], is_true("is_target"), is_true("begins_document")});
  }
  return shown;
}

}  // namespace fsdp
