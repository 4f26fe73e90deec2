// What the name of data may be, wherever a program asks for data:
//   a file                     tokens of any format that is read (formats.hpp), or the name that NAME.bin and NAME.idx have in
//                              common; or plain text, or lines of JSON (text_data.hpp)
//   a folder with dict.txt     of fairseq-preprocess ("data-bin"): its split train, or valid where data to validate on are
//                              named
//   another folder             all files in it that end in .bin, .h5 or .hdf5, in the order of their names; if there are none,
//                              those named as text or JSON; hidden files, whose names begin with a dot, are left out
//   a pattern with * ? [ ]     all files that match, in the order of their names (bytes, whatever the locale)
//   several of these, a,b      one behind the other
//   several with weights, a:0.7,b:0.3   side by side
// A name that is there as a whole is that file, whatever is in it.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/mixture.hpp"
#include "data/text_data.hpp"

namespace fsdp {

/// Which part of a data-bin folder is meant.
enum class Split { train, valid };

/// The files that match a pattern, in the order of their names; any other name as it is. Throws UserError if none does.
std::vector<std::filesystem::path> files_of_pattern(const std::string& name);
/// The data sets in it that are texts, which need to become tokens before the functions below can open them. Throws UserError.
std::vector<TextSet> texts_in(const std::string& name, Split split);
/// Opens all that is no text and lets it go: what is not there, or of an unknown format, is said before long work on the texts.
/// Throws what open_token_file() throws.
void try_opening(const std::string& name, Split split);
/// Training data. `masks`: which of their tokens count (data/samples.hpp): the same names, one for each data set of a mixture,
/// without weights; empty: what the data say themselves. `text_tokens` is the folder where texts have become tokens. Throws
/// UserError, and what open_token_file() throws.
Mixture open_mixture(const std::string& name, const Cut& cut, const std::string& masks = "",
                     const std::filesystem::path& text_tokens = {});
/// Data without weights, in one row: what is validated on or evaluated. Throws the same.
std::unique_ptr<Tokens> open_tokens(const std::string& name, Split split = Split::valid,
                                    const std::filesystem::path& text_tokens = {});
/// Which tokens of data count, to be read in one row with them: numbers for Samples, of a file that also has a mask of its own
/// that mask. Null without a name, for what the data say themselves. Throws the same.
std::unique_ptr<Tokens> open_masks(const std::string& name);
/// A warning that names files next to these data whose names are those of their masks; empty if there are none. For data
/// without `option`, the one that names masks.
std::string unused_masks(const std::string& name, Split split, std::string_view option);
/// The first file that is in the training data and in the data to validate on, if there is one.
std::optional<std::filesystem::path> file_in_both(const std::string& train, const std::string& valid);
/// The folder, if it is one of fairseq-preprocess and has data to validate on.
std::optional<std::string> valid_data_of(const std::string& name);
/// The size of the vocabulary of folders of fairseq-preprocess, the largest of those that `name` has: the lines of dict.txt,
/// and the four tokens that fairseq puts before them (<s>, <pad>, </s>, <unk>). Nothing if there is no such folder. Throws
/// UserError.
std::optional<std::size_t> vocabulary_of(const std::string& name);

}  // namespace fsdp
