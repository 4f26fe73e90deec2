// What the name of data may be, wherever a program asks for data:
//   a file                     of any format that is read (formats.hpp), or the name that NAME.bin and NAME.idx have in common
//   a folder with dict.txt     of fairseq-preprocess ("data-bin"): its split train, or valid where data to validate on are
//   named another folder             all files in it that end in .bin, .h5 or .hdf5, in the order of their names a pattern with
//   * ? [ ]     all files that match, in the order of their names (bytes, whatever the locale) several of these, a,b      one
//   behind the other several with weights, a:0.7,b:0.3   side by side
// A name that is there as a whole is that file, whatever is in it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "data/mixture.hpp"

namespace fsdp {

/// Which part of a data-bin folder is meant.
enum class Split { train, valid };

/// Training data. `masks`: which of their tokens count (data/samples.hpp): the same names, one for each data set of a mixture,
/// without weights; empty: what the data say themselves. Throws UserError, and what open_token_file() throws.
Mixture open_mixture(const std::string& name, const Cut& cut, const std::string& masks = "");
/// Data without weights, in one row: what is validated on or evaluated. Throws the same.
std::unique_ptr<Tokens> open_tokens(const std::string& name, Split split = Split::valid);
/// The folder, if it is one of fairseq-preprocess and has data to validate on.
std::optional<std::string> valid_data_of(const std::string& name);

}  // namespace fsdp
