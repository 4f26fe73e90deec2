#include "data/open_data.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include <glob.h>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/system.hpp"
#include "data/formats.hpp"
#include "data/indexed_format.hpp"
#include "data/text_source.hpp"
#include "files/input_file.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;

/// A part of a data name between commas, such as "dir/*.bin:0.7".
struct MixturePart {
  std::string name;
  std::optional<double> weight;
};

bool is_there(const std::string& name) { return kind_of(name) != PathKind::missing; }

MixturePart part_of(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (is_there(text) || colon == std::string::npos) return {text, std::nullopt};
  double weight = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data() + colon + 1, end, weight);
  if (error != std::errc() || stopped != end) return {text, std::nullopt};
  if (!(weight > 0 && weight < 1e9))
    throw UserError(
        format("the weight of '{}' is not between 0 and 1e9 (each data set gives its share of the sequences); give a weight in "
               "this range, or leave the data set out",
               text));
  return {text.substr(0, colon), weight};
}

std::vector<MixturePart> parts_of(const std::string& name) {
  if (is_there(name)) return {{name, std::nullopt}};
  std::vector<MixturePart> parts;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find(',', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    if (part.empty())
      throw UserError(format("'{}' has an empty part (data sets are separated by commas); remove the comma", name));
    parts.push_back(part_of(part));
    begin = end + 1;
  }
  const auto has_weight = [](const MixturePart& part) { return part.weight.has_value(); };
  const auto with_weight = std::count_if(parts.begin(), parts.end(), has_weight);
  if (with_weight > 0 && with_weight < std::ssize(parts))
    throw UserError(format(
        "'{}' has weights for some of its data sets, but not for all; give each data set a weight, or give no weights to read "
        "them one after the other",
        name));
  return parts;
}

/// Removes masks from the files of a folder or pattern: NAME.mask.bin is the mask of NAME.bin if both exist, and
/// NAME.mask_000001.bin is the mask of NAME_000001.bin.
void leave_out_masks(std::vector<fs::path>& paths) {
  constexpr std::string_view mask = ".mask";
  const std::vector<fs::path> all = paths;
  std::erase_if(paths, [&](const fs::path& path) {
    std::string name = path.filename().string();
    const std::size_t at = name.rfind(mask);
    if (at == std::string::npos) return false;
    name.erase(at, mask.size());
    return std::binary_search(all.begin(), all.end(), path.parent_path() / name);
  });
}

/// The files that match a pattern, in the order of the names' bytes, which is the same on all ranks.
std::vector<fs::path> files_like(const std::string& pattern) {
  glob_t found{};
  const int result = ::glob(pattern.c_str(), GLOB_NOSORT | GLOB_ERR, nullptr, &found);
  std::vector<fs::path> paths;
  for (std::size_t i = 0; i < found.gl_pathc; ++i) paths.emplace_back(found.gl_pathv[i]);
  ::globfree(&found);
  if (result != 0 && result != GLOB_NOMATCH)
    throw UserError(
        format("the pattern '{}' cannot be searched (a folder cannot be read); check the folder's permissions", pattern));
  if (paths.empty()) throw UserError(format("no file matches '{}' (there is nothing to read); check the pattern", pattern));
  std::sort(paths.begin(), paths.end());
  const std::vector<fs::path> all = paths;
  std::erase_if(paths, [&](const fs::path& path) {  // NAME.bin and NAME.idx are one data set
    return path.extension() == ".idx" && std::binary_search(all.begin(), all.end(), fs::path(path).replace_extension(".bin"));
  });
  leave_out_masks(paths);
  return paths;
}

/// The files of a split: train, train1, train2, ..., as fairseq reads them.
std::vector<fs::path> files_of_split(const fs::path& folder, Split split) {
  const std::string name = split == Split::train ? "train" : "valid";
  std::vector<fs::path> paths;
  for (int k = 0;; ++k) {
    const fs::path path = folder / format("{}{}.bin", name, k == 0 ? "" : std::to_string(k));
    if (kind_of(path) != PathKind::file) break;
    paths.push_back(path);
  }
  // fairseq also stops at a gap. Here files after a gap are an error.
  std::error_code problem;
  for (fs::directory_iterator entry(folder, problem), end; !problem && entry != end; entry.increment(problem)) {
    const std::string file = entry->path().stem().string(), number = file.substr(std::min(file.size(), name.size()));
    if (entry->path().extension() == ".bin" && file.starts_with(name) && !number.empty() &&
        number.find_first_not_of("0123456789") == std::string::npos && std::ranges::find(paths, entry->path()) == paths.end())
      throw UserError(format(
          "'{}' would not be read (the parts of a split are {}.bin, {}1.bin, {}2.bin and so on, and a file before this one "
          "is missing); add the missing file, or move this file away",
          entry->path().string(), name, name, name));
  }
  if (paths.empty())
    throw UserError(
        format("'{0}' has no {1}.bin next to its dict.txt (it is a folder of fairseq-preprocess without that split; folders "
               "for pairs of languages are not read); preprocess one language with that split, or name a file",
               folder.string(), name));
  return paths;
}

/// Returns true if a file is named as text. Compressed texts are included; they are refused later by their content.
bool is_named_text(fs::path path) {
  for (const char* const packed : {".gz", ".zst"})
    if (path.extension() == packed) path.replace_extension();
  return is_named_json(path) || path.extension() == ".txt" || path.extension() == ".TXT";
}

/// Returns true if a word of the file's name says that it is not for training, as in `datasets`.
bool is_held_out(const fs::path& path) {
  std::string word;
  for (const char c : path.filename().string() + ".") {
    if (std::isalpha(static_cast<unsigned char>(c))) {
      word += c;
      continue;
    }
    for (const char* const held_out : {"valid", "validation", "val", "dev", "test", "testing", "eval", "evaluation"})
      if (word == held_out) return true;
    word.clear();
  }
  return false;
}

std::vector<fs::path> files_of_folder(const fs::path& folder) {
  std::vector<fs::path> paths, texts;
  std::error_code problem;
  for (fs::directory_iterator entry(folder, problem), end; !problem && entry != end; entry.increment(problem)) {
    const fs::path extension = entry->path().extension();
    const std::string file = entry->path().filename().string();
    if (file.starts_with('.')) continue;
    if (file.starts_with("dict.") && file.ends_with(".txt"))
      throw UserError(format(
          "'{}' is a folder of fairseq-preprocess for pairs of languages ({} is there, and no dict.txt; all of its splits "
          "would be read as one); preprocess only one language, or name a file",
          folder.string(), file));
    if (extension == ".bin" || extension == ".h5" || extension == ".hdf5") paths.push_back(entry->path());
    if (is_named_text(entry->path())) texts.push_back(entry->path());
  }
  if (problem) throw CallError("read the folder " + folder.string(), problem.message());
  if (paths.empty()) paths = std::move(texts);
  if (paths.empty())
    throw UserError(format(
        "'{}' holds no token files and no text (it has no dict.txt, and no file that ends in .bin, .h5, .hdf5, .txt, .jsonl, "
        ".ndjson or .json); name a token file, as fsdp-tokenize makes, or a text file",
        folder.string()));
  std::sort(paths.begin(), paths.end());
  leave_out_masks(paths);
  const auto held_out = std::ranges::find_if(paths, is_held_out), other = std::ranges::find_if_not(paths, is_held_out);
  if (held_out != paths.end() && other != paths.end())
    throw UserError(
        format("'{}' holds several splits by the names of its files ({} and {}: all would be read as one); name the files of "
               "one split, or give the pattern '{}' to read all",
               folder.string(), other->filename().string(), held_out->filename().string(),
               (folder / ("*" + other->extension().string())).string()));
  return paths;
}

bool is_data_bin(const std::string& name) {
  return kind_of(name) == PathKind::folder && kind_of(fs::path(name) / "dict.txt") == PathKind::file;
}

std::vector<fs::path> files_of(const std::string& name, Split split) {
  if (is_data_bin(name)) return files_of_split(name, split);
  if (kind_of(name) == PathKind::folder) return files_of_folder(name);
  return files_of_pattern(name);
}

/// Returns the files as a data set of text if all are texts, and nullopt if none is. Throws UserError if only some are.
std::optional<TextSet> text_of(const std::string& name, const std::vector<fs::path>& paths) {
  const auto count = std::count_if(paths.begin(), paths.end(), is_text_file);
  if (count == 0) return std::nullopt;
  if (count < std::ssize(paths)) {
    const auto other = std::find_if_not(paths.begin(), paths.end(), is_text_file);
    throw UserError(
        format("'{}' has text and other files ('{}' is no text, and a data set cannot have both); name them separately", name,
               other->string()));
  }
  TextSet text{name, {}};
  for (const fs::path& path : paths) text.files.push_back(path.string());
  return text;
}

/// Opens the mask that a token file contains. If the file contains none, its tokens are the mask.
std::unique_ptr<Tokens> open_mask_file(const fs::path& path) {
  std::unique_ptr<Tokens> file = open_token_file(path);
  std::unique_ptr<Tokens> own = file->mask();
  return own ? std::move(own) : std::move(file);
}

using OpenFile = std::unique_ptr<Tokens> (*)(const fs::path&);

std::unique_ptr<Tokens> open_part(const std::string& name, Split split, const fs::path& text_tokens,
                                  OpenFile open_file = open_token_file) {
  const std::vector<fs::path> paths = files_of(name, split);
  if (!text_tokens.empty())
    if (const auto text = text_of(name, paths)) return open_tokens_of_text(*text, text_tokens);
  allow_open_files(paths.size());
  std::vector<std::unique_ptr<Tokens>> files;
  for (const fs::path& path : paths) files.push_back(open_file(path));
  return join(std::move(files));
}

std::unique_ptr<Tokens> open_in_a_row(const std::string& name, Split split, const fs::path& text_tokens,
                                      OpenFile open_file = open_token_file) {
  const std::vector<MixturePart> parts = parts_of(name);
  if (parts.front().weight)
    throw UserError(
        format("'{}' has weights (these data are read once as a whole, without shares); leave the weights out", name));
  std::vector<std::unique_ptr<Tokens>> all;
  for (const MixturePart& part : parts) all.push_back(open_part(part.name, split, text_tokens, open_file));
  return join(std::move(all));
}

/// All files of the data `name`. For a data set in two files, the file with the tokens.
std::vector<fs::path> all_files(const std::string& name, Split split) {
  std::vector<fs::path> all;
  for (const MixturePart& part : parts_of(name))
    for (const fs::path& path : files_of(part.name, split))
      all.push_back(kind_of(path) == PathKind::missing || path.extension() == ".idx" ? indexed::data_of(path) : path);
  return all;
}

}  // namespace

std::vector<fs::path> files_of_pattern(const std::string& name) {
  if (is_there(name) || name.find_first_of("*?[") == std::string::npos) return {name};
  return files_like(name);
}

std::vector<fs::path> files_of_data(const std::string& name, Split split) {
  std::vector<fs::path> all;
  if (name.empty()) return all;
  for (const fs::path& path : all_files(name, split)) {
    all.push_back(path);
    if (path.extension() == ".bin") all.push_back(indexed::index_of(path));
  }
  for (const MixturePart& part : parts_of(name))
    if (is_data_bin(part.name)) all.push_back(fs::path(part.name) / "dict.txt");
  return all;
}

std::vector<TextSet> texts_in(const std::string& name, Split split) {
  std::vector<TextSet> texts;
  for (const MixturePart& part : parts_of(name))
    if (auto text = text_of(part.name, files_of(part.name, split))) texts.push_back(std::move(*text));
  return texts;
}

void try_opening(const std::string& name, Split split) {
  for (const MixturePart& part : parts_of(name)) {
    const std::vector<fs::path> paths = files_of(part.name, split);
    if (text_of(part.name, paths)) continue;
    for (const fs::path& path : paths) static_cast<void>(open_token_file(path));
  }
}

Mixture open_mixture(const std::string& name, const Cut& cut, const std::string& masks, const fs::path& text_tokens) {
  const std::vector<MixturePart> parts = parts_of(name);
  std::vector<Ingredient> ingredients;
  if (parts.front().weight) {
    const std::vector<MixturePart> mask_parts = masks.empty() ? std::vector<MixturePart>{} : parts_of(masks);
    if (!masks.empty() && mask_parts.size() != parts.size())
      throw UserError(
          format("'{}' has {} data sets, but '{}' has {} masks (each data set has its own mask); give one mask for each", name,
                 parts.size(), masks, mask_parts.size()));
    for (std::size_t i = 0; i < parts.size(); ++i)
      ingredients.push_back({Samples(open_part(parts[i].name, Split::train, text_tokens), cut,
                                     masks.empty() ? nullptr : open_part(mask_parts[i].name, Split::train, {}, open_mask_file)),
                             *parts[i].weight});
  } else {
    ingredients.push_back({Samples(open_in_a_row(name, Split::train, text_tokens), cut, open_masks(masks))});
  }
  return Mixture(std::move(ingredients));
}

std::unique_ptr<Tokens> open_tokens(const std::string& name, Split split, const fs::path& text_tokens) {
  return open_in_a_row(name, split, text_tokens);
}

std::unique_ptr<Tokens> open_masks(const std::string& name) {
  return name.empty() ? nullptr : open_in_a_row(name, Split::train, {}, open_mask_file);
}

std::string unused_masks(const std::string& name, Split split, std::string_view option) {
  std::string first;
  std::size_t count = 0;
  for (const fs::path& data : all_files(name, split)) {
    const std::string stem = data.stem().string(), extension = data.extension().string();
    for (const std::size_t at : {stem.size(), stem.rfind('_')}) {  // NAME.mask.bin, NAME.mask_000001.bin
      if (at == std::string::npos) continue;
      const fs::path mask = data.parent_path() / (stem.substr(0, at) + ".mask" + stem.substr(at) + extension);
      if (kind_of(mask) != PathKind::file || is_text_file(mask) || count++ > 0) continue;
      first = format("'{}' is not used (it is named like the loss mask of '{}'; without a mask all tokens count)",
                     mask.string(), data.string());
    }
  }
  if (count == 0) return "";
  return format("{}; give it by {}, or rename it if it is no mask{}", first, option,
                count == 1 ? "" : format("; the same holds for {} more files", count - 1));
}

std::optional<fs::path> file_in_both(const std::string& train, const std::string& valid) {
  std::vector<fs::path> training;
  for (const fs::path& path : all_files(train, Split::train)) training.push_back(fs::canonical(path));
  std::sort(training.begin(), training.end());
  for (const fs::path& path : all_files(valid, Split::valid))
    if (std::binary_search(training.begin(), training.end(), fs::canonical(path))) return path;
  return std::nullopt;
}

std::optional<std::string> valid_data_of(const std::string& name) {
  if (is_data_bin(name) && kind_of(fs::path(name) / "valid.bin") == PathKind::file) return name;
  return std::nullopt;
}

std::optional<std::size_t> vocabulary_of(const std::string& name) {
  std::optional<std::size_t> most;
  for (const MixturePart& part : parts_of(name)) {
    if (!is_data_bin(part.name)) continue;
    const std::string dictionary = read_text_file(fs::path(part.name) / "dict.txt");
    const auto lines = static_cast<std::size_t>(std::count(dictionary.begin(), dictionary.end(), '\n')) +
                       (!dictionary.empty() && dictionary.back() != '\n' ? 1 : 0);
    most = std::max(most.value_or(0), lines + 4);
  }
  return most;
}

}  // namespace fsdp
