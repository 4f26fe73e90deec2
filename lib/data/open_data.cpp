#include "data/open_data.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <map>
#include <regex>
#include <string_view>
#include <utility>
#include <vector>

#include <glob.h>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/system.hpp"
#include "data/formats.hpp"
#include "data/indexed_format.hpp"
#include "data/text_file.hpp"
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

/// Throws UserError if two files are the same text, packed in two ways or once packed and once not.
void require_packed_once(const std::vector<fs::path>& paths) {
  std::map<fs::path, fs::path> texts;
  for (const fs::path& path : paths)
    if (const auto [other, is_new] = texts.emplace(without_packing(path), path); !is_new)
      throw UserError(format(
          "'{}' and '{}' are the same text by their names (packed in two ways, or packed and not; it would be read twice); "
          "remove one of them, or name only one",
          other->second.string(), path.string()));
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
  require_packed_once(paths);
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

/// Returns true if a file is named as text, which may be packed, or as Parquet.
bool is_named_text(const fs::path& path) {
  const fs::path extension = without_packing(path).extension();
  return is_named_json(path) || extension == ".txt" || extension == ".TXT" || path.extension() == ".parquet";
}

bool is_named_tokens(const fs::path& path) {
  const fs::path extension = path.extension();
  return extension == ".bin" || extension == ".h5" || extension == ".hdf5";
}

/// The splits that a name may have, by the words of `datasets`.
enum NamedSplit { train_split, valid_split, test_split, no_split };
constexpr std::pair<std::string_view, NamedSplit> split_words[] = {
    {"train", train_split}, {"training", train_split}, {"validation", valid_split}, {"valid", valid_split},
    {"dev", valid_split},   {"val", valid_split},      {"test", test_split},        {"testing", test_split},
    {"eval", test_split},   {"evaluation", test_split}};

/// The split that a word of the name stands for. Words end at "-", ".", "_", a space or a digit.
NamedSplit split_of(const std::string& name) {
  NamedSplit found = no_split;
  std::string word;
  for (const char c : name + ".") {
    if (std::string_view("/-._ 0123456789").find(c) == std::string_view::npos) {
      word += c;
      continue;
    }
    for (const auto& [of_split, split] : split_words) {
      if (word != of_split) continue;
      if (found != no_split && found != split)
        throw UserError(
            format("'{}' contains the names of two splits of the data; rename it, or name the files to be read", name));
      found = split;
    }
    word.clear();
  }
  return found;
}

/// Returns true for the name of a folder that has the files of one split.
bool is_named_split(const std::string& name) {
  try {
    return split_of(name) != no_split;
  } catch (const UserError&) {  // as in "val_eval_logs"
    return false;
  }
}

/// The files of a folder by their splits. If no name is that of a split, or all files are of one split, all are in `no_split`.
using Splits = std::array<std::vector<fs::path>, 4>;

bool has_splits(const Splits& splits) {
  return splits[train_split].size() + splits[valid_split].size() + splits[test_split].size() > 0;
}

/// All files of a folder that can be read: those in it, and those in its folder `data` and in folders named as splits.
std::vector<fs::path> find_files(const fs::path& folder) {
  std::vector<fs::path> tokens, texts;
  const auto add = [&](const fs::path& path) {
    if (is_named_tokens(path)) tokens.push_back(path);
    if (is_named_text(path)) texts.push_back(path);
  };
  std::error_code problem;
  for (fs::directory_iterator entry(folder, problem), end; !problem && entry != end; entry.increment(problem)) {
    const std::string file = entry->path().filename().string();
    if (file.starts_with('.')) continue;
    if (file.starts_with("dict.") && file.ends_with(".txt"))
      throw UserError(format(
          "'{}' is a folder of fairseq-preprocess for pairs of languages ({} is there, and no dict.txt; all of its splits "
          "would be read as one); preprocess only one language, or name a file",
          folder.string(), file));
    if (kind_of(entry->path()) != PathKind::folder) {
      add(entry->path());
      continue;
    }
    if (file != "data" && !is_named_split(file)) continue;
    for (fs::recursive_directory_iterator inner(entry->path(), problem); !problem && inner != fs::end(inner);
         inner.increment(problem))
      if (kind_of(inner->path()) == PathKind::file && !inner->path().filename().string().starts_with('.')) add(inner->path());
  }
  if (problem) throw CallError("read the folder " + folder.string(), problem.message());
  std::vector<fs::path> paths = std::move(tokens.empty() ? texts : tokens);
  std::sort(paths.begin(), paths.end());
  leave_out_masks(paths);
  require_packed_once(paths);
  return paths;
}

/// Finds the splits as load_dataset() of `datasets` does: by names such as data/train-00000-of-00002.parquet, else by the names
/// of folders in the folder, else by the names of files.
Splits find_splits(const fs::path& folder) {
  const std::vector<fs::path> paths = find_files(folder);
  const auto by = [&](const auto& split_of_path) {
    Splits splits;
    for (const fs::path& path : paths) splits[split_of_path(path.lexically_relative(folder))].push_back(path);
    return splits;
  };
  static const std::regex shard("data/(.*)-[0-9]{5}-of-[0-9]{5}.*");
  std::string other;  // a split with another name, as in data/train_sft-00000-of-00001.parquet
  Splits splits = by([&](const fs::path& path) {
    std::smatch match;
    const std::string name = path.generic_string();
    if (!std::regex_match(name, match, shard)) return no_split;
    for (const auto& [word, split] : split_words)
      if (match.str(1) == word) return split;
    other = match[1];
    return no_split;
  });
  if (!has_splits(splits) && !other.empty())
    throw UserError(
        format("'{0}' has a split {1} (of the splits of a folder, only train and validation are read without their "
               "names); name the files of one split: '{2}'",
               folder.string(), other, (folder / "data" / (other + "-*")).string()));
  if (!has_splits(splits)) splits = by([](const fs::path& path) { return split_of(path.parent_path().generic_string()); });
  if (!has_splits(splits)) splits = by([](const fs::path& path) { return split_of(path.filename().string()); });
  if (!has_splits(splits)) {
    std::erase_if(splits[no_split], [&](const fs::path& path) { return path.lexically_relative(folder).has_parent_path(); });
  } else if (std::ranges::count_if(splits, [](const auto& files) { return !files.empty(); }) == 1) {
    splits = {};
    splits[no_split] = paths;
  }
  return splits;
}

std::vector<fs::path> files_of_folder(const fs::path& folder, Split split) {
  const Splits splits = find_splits(folder);
  const std::vector<fs::path>& wanted = splits[!has_splits(splits)     ? no_split
                                               : split == Split::train ? train_split
                                                                       : valid_split];
  if (!wanted.empty()) return wanted;
  if (has_splits(splits)) {
    std::vector<std::string> there;
    for (const auto& files : splits)
      if (!files.empty()) there.push_back(files.front().lexically_relative(folder).string());
    throw UserError(format("'{}' has no {} split by the names of its files ({}); name the files to be read, such as '{}'",
                           folder.string(), split == Split::train ? "train" : "validation",
                           fmt::to_string(fmt::join(there, ", ")), (folder / there.front()).string()));
  }
  throw UserError(format(
      "'{}' holds no token files and no text (it has no dict.txt, and no file that ends in .bin, .h5, .hdf5, .txt, .jsonl, "
      ".ndjson, .json, one of the last four with .gz or .zst, or .parquet); name a token file, as fsdp-tokenize makes, or a "
      "text file",
      folder.string()));
}

bool is_data_bin(const std::string& name) {
  return kind_of(name) == PathKind::folder && kind_of(fs::path(name) / "dict.txt") == PathKind::file;
}

std::vector<fs::path> files_of(const std::string& name, Split split) {
  if (is_data_bin(name)) return files_of_split(name, split);
  if (kind_of(name) == PathKind::folder) return files_of_folder(name, split);
  return files_of_pattern(name);
}

/// Returns the files as a data set of text if all are texts, and nullopt if none is. Throws UserError if only some are.
std::optional<TextSet> text_of(const std::string& name, Split split, const std::vector<fs::path>& paths) {
  for (const fs::path& path : paths)
    if (std::error_code none; is_named_text(path) && fs::is_empty(path, none))
      throw UserError(format("cannot read '{}' (it is empty); delete it, or name the other files", path.string()));
  const auto count = std::count_if(paths.begin(), paths.end(), is_text_file);
  if (count == 0) return std::nullopt;
  if (count < std::ssize(paths)) {
    const auto other = std::find_if_not(paths.begin(), paths.end(), is_text_file);
    throw UserError(
        format("'{}' has text and other files ('{}' is no text, and a data set cannot have both); name them separately", name,
               other->string()));
  }
  TextSet text{name, {}};
  // Each split has a name of its own, from which the name of its token file is made.
  if (kind_of(name) == PathKind::folder && has_splits(find_splits(name)))
    text.name = (fs::path(name).has_filename() ? fs::path(name) : fs::path(name).parent_path()).string() +
                (split == Split::train ? " (train)" : " (validation)");
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
    if (const auto text = text_of(name, split, paths)) return open_tokens_of_text(*text, text_tokens);
  allow_open_files(paths.size());
  std::vector<std::unique_ptr<Tokens>> files;
  for (const fs::path& path : paths) files.push_back(open_file(path));
  return join(std::move(files));
}

std::unique_ptr<Tokens> open_in_a_row(const std::string& name, Split split, const fs::path& text_tokens,
                                      OpenFile open_file = open_token_file) {
  require_no_weights(name);
  std::vector<std::unique_ptr<Tokens>> all;
  for (const MixturePart& part : parts_of(name)) all.push_back(open_part(part.name, split, text_tokens, open_file));
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

std::vector<std::string> sets_in(const std::string& name) {
  std::vector<std::string> names;
  for (const MixturePart& part : parts_of(name)) names.push_back(part.name);
  return names;
}

std::vector<TextSet> texts_in(const std::string& name, Split split) {
  std::vector<TextSet> texts;
  std::vector<fs::path> paths;
  for (const MixturePart& part : parts_of(name))
    if (auto text = text_of(part.name, split, files_of(part.name, split))) {
      paths.insert(paths.end(), text->files.begin(), text->files.end());
      texts.push_back(std::move(*text));
    }
  std::sort(paths.begin(), paths.end());
  paths.erase(std::unique(paths.begin(), paths.end()), paths.end());  // the same file twice is a user's wish
  require_packed_once(paths);
  return texts;
}

bool has_weights(const std::string& name) { return parts_of(name).front().weight.has_value(); }

void require_no_weights(const std::string& name) {
  if (has_weights(name))
    throw UserError(
        format("'{}' has weights (these data are read once as a whole, without shares); leave the weights out", name));
}

void try_opening(const std::string& name, Split split) {
  for (const MixturePart& part : parts_of(name)) {
    const std::vector<fs::path> paths = files_of(part.name, split);
    if (text_of(part.name, split, paths)) continue;
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
  if (kind_of(name) != PathKind::folder) return std::nullopt;
  const bool has_valid =
      is_data_bin(name) ? kind_of(fs::path(name) / "valid.bin") == PathKind::file : !find_splits(name)[valid_split].empty();
  return has_valid ? std::optional(name) : std::nullopt;
}

std::vector<fs::path> unread_files(const std::string& name, bool reads_valid) {
  std::vector<fs::path> unread;
  for (const MixturePart& part : parts_of(name)) {
    if (is_data_bin(part.name) || kind_of(part.name) != PathKind::folder) continue;
    const Splits splits = find_splits(part.name);
    if (!has_splits(splits)) continue;
    for (const NamedSplit split : {valid_split, test_split, no_split})
      if (split != valid_split || !reads_valid) unread.insert(unread.end(), splits[split].begin(), splits[split].end());
  }
  return unread;
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
