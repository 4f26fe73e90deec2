// Opens data by name. In every program the name of data may be:
//   a file                     tokens in a known format (formats.hpp), where NAME stands for NAME.bin and NAME.idx; or plain
//                              text, or JSON records (text_data.hpp)
//   a folder with dict.txt     a "data-bin" of fairseq-preprocess; its split train for training, its split valid for validation
//   another folder             all files in it that end in .bin, .h5 or .hdf5, in the order of their names; if there are none,
//                              all files named as text, JSON or Parquet; names that begin with a dot are left out. If the names
//                              are those of several splits, as in `datasets` (train.jsonl and valid.jsonl, folders train/ and
//                              test/, data/train-00000-of-00002.parquet), only one is read: train for training, validation for
//                              validation
//   a pattern with * ? [ ]     all files that match, in the order of their names (bytes, whatever the locale)
//   several of these, a,b      read one after the other, as one data set
//   several with weights, a:0.7,b:0.3   a mixture (mixture.hpp)
//
// If a file or folder has the whole name, it is opened, even if the name has commas, colons or * ? [ ].
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

/// A split of a folder: of those that fairseq-preprocess writes ("data-bin"), and of those with the names of splits.
enum class Split { train, valid };

/// Returns the files that match the pattern `name`, in the order of their names; if it is no pattern, returns `name` itself.
/// Throws UserError if no file matches.
std::vector<std::filesystem::path> files_of_pattern(const std::string& name);
/// Returns the files that are read if `name` is opened, with indices and dictionaries, of which some may be missing; none if
/// `name` is empty. Throws UserError.
std::vector<std::filesystem::path> files_of_data(const std::string& name, Split split);
/// The names of the data sets in `name`, without their weights.
std::vector<std::string> sets_in(const std::string& name);
/// Returns the data sets in `name` that are texts. They must be tokenized before the functions below can open them. Throws
/// UserError.
std::vector<TextSet> texts_in(const std::string& name, Split split);
/// Opens and closes all data sets that are not texts, so that missing files and unknown formats are reported before the texts
/// are tokenized, which takes long. Throws what open_token_file() throws.
void try_opening(const std::string& name, Split split);
/// Returns true if the data sets in the name have weights, and so are a mixture. The second function throws UserError then.
bool has_weights(const std::string& name);
void require_no_weights(const std::string& name);
/// Opens training data. `masks` names the loss masks (data/samples.hpp) in the same form as `name`: one mask for each data set
/// of a mixture, without weights. If `masks` is empty, the data's own masks are used. `text_tokens` is the folder of the
/// token files that were made from texts. Throws UserError, and what open_token_file() throws.
Mixture open_mixture(const std::string& name, const Cut& cut, const std::string& masks = "",
                     const std::filesystem::path& text_tokens = {});
/// Opens data without weights as one row of tokens, for validation or evaluation. Throws what open_mixture() throws.
std::unique_ptr<Tokens> open_tokens(const std::string& name, Split split = Split::valid,
                                    const std::filesystem::path& text_tokens = {});
/// Opens the loss masks `name`, as one row, for data opened by open_tokens(). If a file has tokens and a mask, its mask is
/// used. If `name` is empty, returns null, and the data's own masks are used. Throws what open_mixture() throws.
std::unique_ptr<Tokens> open_masks(const std::string& name);
/// Returns a warning if files next to the data have the names of loss masks (NAME.mask.bin), but are not used; otherwise an
/// empty text. `option` is the option with which a user would name the masks.
std::string unused_masks(const std::string& name, Split split, std::string_view option);
/// The first file that is in both the training and the validation data, if there is one.
std::optional<std::filesystem::path> file_in_both(const std::string& train, const std::string& valid);
/// Returns `name` if this is a folder with validation data, by its split; otherwise nullopt.
std::optional<std::string> valid_data_of(const std::string& name);
/// The files of the folders with splits in `name` that training does not read. If `reads_valid` is true, it reads the
/// validation splits, too.
std::vector<std::filesystem::path> unread_files(const std::string& name, bool reads_valid);
/// The largest vocabulary size of the folders of fairseq-preprocess in `name`: the number of lines of dict.txt, plus the four
/// tokens that fairseq puts before them (<s>, <pad>, </s>, <unk>). Returns nullopt if `name` has no such folder. Throws
/// UserError.
std::optional<std::size_t> vocabulary_of(const std::string& name);

}  // namespace fsdp
