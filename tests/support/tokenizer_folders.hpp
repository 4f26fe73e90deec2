// Folders of tokenizers, compared with the results of transformers' AutoTokenizer (golden/tokenizers/make_folders.py).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <boost/test/unit_test.hpp>

#include "files/json.hpp"
#include "support/files.hpp"
#include "text/tokenizer.hpp"

namespace fsdp::test {

/// Writes the files of a folder that make_folders.py describes, with keys in their order. `data` is the folder with the
/// tokenizers that these files are made from.
inline void write_tokenizer_folder(const nlohmann::ordered_json& one, const std::filesystem::path& data,
                                   const std::filesystem::path& to) {
  const std::string base = one["base"], main = one["main"];
  if (main == "vocab.json") {
    const nlohmann::json model = read_json_file(data / (base + ".json"))["model"];
    std::string merges = "#version: 0.2\n";
    for (const nlohmann::json& merge : model["merges"])
      merges +=
          (merge.is_string() ? merge.get<std::string>() : merge[0].get<std::string>() + " " + merge[1].get<std::string>()) +
          "\n";
    write_file(to / main, model["vocab"].dump());
    write_file(to / "merges.txt", merges);
  } else {
    std::filesystem::copy(data / (base + (main == "tokenizer.model" ? ".model" : ".json")), to / main);
  }
  for (const auto& [name, content] : one["files"].items()) write_file(to / name, content.dump());
}

/// Checks each folder of a file that make_folders.py wrote.
inline void check_tokenizer_folders(const std::filesystem::path& file, const std::filesystem::path& data) {
  const nlohmann::ordered_json expected = nlohmann::ordered_json::parse(read_file(file));
  for (const nlohmann::ordered_json& one : expected["folders"]) {
    BOOST_TEST_CONTEXT(one["base"] << " " << one["main"] << " " << one["files"]) {
      const TemporaryFolder folder;
      write_tokenizer_folder(one, data, folder.path());
      const auto tokenizer = open_tokenizer(folder.path().string());
      for (std::size_t i = 0; i < one["ids"].size(); ++i)
        BOOST_TEST(tokenizer->encode(expected["texts"][i].get<std::string>()) == one["ids"][i].get<std::vector<TokenId>>(),
                   boost::test_tools::per_element());
      std::vector<TokenId> around = tokenizer->before_text();
      tokenizer->encode("x", around);
      around.insert(around.end(), tokenizer->after_text().begin(), tokenizer->after_text().end());
      BOOST_TEST(around == one["x"].get<std::vector<TokenId>>(), boost::test_tools::per_element());
      BOOST_TEST(tokenizer->vocab_size() == one["size"].get<std::size_t>());
      for (const auto& [key, text] : one["special"].items())
        BOOST_TEST(tokenizer->special_tokens().at(key) == text.get<std::string>());
      BOOST_TEST(tokenizer->special_tokens().size() == one["special"].size());
      BOOST_TEST(tokenizer->decode(one["decoded"].get<std::vector<TokenId>>()) == one["text"].get<std::string>());
    }
  }
}

}  // namespace fsdp::test
