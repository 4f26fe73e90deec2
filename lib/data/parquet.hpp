// Reads Parquet files as lines of JSON: each row becomes the line that `to_json` of `datasets` and pandas would write, with all
// columns, so that all that follows is the same for both. Memory holds one page of each column.
//
// Read are data pages of both versions, nested columns, all encodings that pyarrow, datasets, polars and DuckDB write for
// texts, numbers and lists of these, and pages that are not compressed or compressed by Snappy, gzip or zstd. A value of a type
// that JSON lacks (dates, decimals, fixed-size bytes) is null. The format is described in apache/parquet-format
// (parquet.thrift, Encodings.md) and, for nested columns, in Melnik et al., "Dremel: Interactive Analysis of Web-Scale
// Datasets", VLDB 2010.
#pragma once

#include <memory>

#include "files/input_file.hpp"
#include "files/unpack.hpp"

namespace fsdp {

/// The rows of a Parquet file, in order. Throws UserError for a file that is damaged, cut or encrypted, or that needs what is
/// not read; more() throws the same.
std::unique_ptr<ByteStream> rows_of_parquet(InputFile file);

}  // namespace fsdp
